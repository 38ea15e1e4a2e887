// The rows of the verb table for what talks to a coordinator.
#include "ops/cli/client_verbs.h"

#include "ops/cli/client_session.h"

namespace swax {
namespace {

OptionSpec request_id_option() {
  return {.name = "--request-id",
          .value = "ID",
          .doc = "32 hex digits; the same one again is carried out once; default a new one"};
}

OptionSpec patience_option() {
  return {.name = "--timeout",
          .value = "S",
          .doc = "seconds to try to be heard",
          .kind = ArgKind::kReal,
          .fallback = "30",
          .min = 0.1,
          .max = 1e6};
}

WordSpec job_word() { return {.name = "JOB", .doc = "name of the job (job.name)"}; }

VerbSpec submit_verb() {
  return {.name = "submit",
          .summary = "Hands a job over to the coordinator, once.",
          .details =
              "Ends when the coordinator has the job on disk. A request that is not answered is "
              "sent again with the same request id, which is carried out once.\n"
              "Exit codes: 2 the spec is wrong, 4 the name is taken or the request id belongs to "
              "another request, 5 nothing was heard (the request id is printed), 8 too many "
              "jobs; with --wait the job's: 0 SUCCEEDED, 10 FAILED, 11 CANCELLED.",
          .words = {{.name = "FILE", .doc = "job spec (TOML), at most 256 KiB"}},
          .options = {coordinator_option(),
                      ranks_option(),
                      set_option(),
                      {.name = "--priority",
                       .value = "P",
                       .doc = "higher ones are placed first",
                       .kind = ArgKind::kInteger,
                       .fallback = "0",
                       .min = -1000000,
                       .max = 1000000},
                      request_id_option(),
                      patience_option(),
                      {.name = "--wait",
                       .value = "",
                       .doc = "show the job's progress and end with its result",
                       .kind = ArgKind::kFlag},
                      output_option()},
          .examples = {"swax submit jobs/quickstart.toml --ranks 2 --wait"},
          .run = verb_submit};
}

VerbSpec logs_verb() {
  return {.name = "logs",
          .summary = "Shows the log of a rank of a job.",
          .details =
              "Read from the store, which must be seen from this machine. -f goes on, from "
              "attempt to attempt, until the job has ended. Of a log larger than 256 MiB the "
              "middle is dropped, and said; logs of the newest 100 attempts are kept.",
          .words = {job_word()},
          .options = {coordinator_option(),
                      {.name = "--rank",
                       .value = "R",
                       .doc = "which rank",
                       .kind = ArgKind::kInteger,
                       .fallback = "0",
                       .min = 0,
                       .max = 65535},
                      {.name = "--attempt",
                       .value = "E",
                       .doc = "which attempt; 0: the newest",
                       .kind = ArgKind::kInteger,
                       .fallback = "0"},
                      follow_option(),
                      output_option()},
          .examples = {"swax logs quickstart --rank 1 -f"},
          .run = verb_logs};
}

VerbSpec wait_verb() {
  return {.name = "wait",
          .summary = "Waits until a job has ended and ends with its result.",
          .details =
              "Also through restarts of the coordinator. Exit codes: 0 SUCCEEDED, 10 "
              "FAILED, 11 CANCELLED, 12 EXPIRED, 124 the time was over first.",
          .words = {job_word()},
          .options = {coordinator_option(),
                      {.name = "--timeout",
                       .value = "S",
                       .doc = "seconds to wait; 0: as long as it takes",
                       .kind = ArgKind::kReal,
                       .fallback = "0",
                       .min = 0,
                       .max = 1e9},
                      output_option()},
          .examples = {"swax wait quickstart --timeout 600"},
          .run = verb_wait};
}

void add_changes(std::vector<VerbSpec>* verbs) {
  verbs->push_back({.name = "cancel",
                    .summary = "Ends a job after a checkpoint, or at once.",
                    .details = "`swax resume` goes on from its last checkpoint.",
                    .words = {job_word()},
                    .options = {coordinator_option(),
                                {.name = "--now",
                                 .value = "",
                                 .doc = "kill it; steps since the last checkpoint are lost",
                                 .kind = ArgKind::kFlag},
                                request_id_option(),
                                patience_option(),
                                output_option()},
                    .examples = {"swax cancel quickstart"},
                    .run = verb_cancel});
  verbs->push_back(
      {.name = "resume",
       .summary = "Goes on with a failed or cancelled job.",
       .details = "From its last committed checkpoint; exit code 4 when it is neither.",
       .words = {job_word()},
       .options = {coordinator_option(), request_id_option(), patience_option(), output_option()},
       .examples = {"swax resume quickstart"},
       .run = verb_resume});
}

}  // namespace

OptionSpec follow_option() {
  return {.name = "--follow",
          .value = "",
          .doc = "go on with what comes",
          .kind = ArgKind::kFlag,
          .letter = 'f'};
}

std::vector<VerbSpec> client_verbs() {
  std::vector<VerbSpec> verbs = {submit_verb()};
  verbs.push_back({.name = "list",
                   .summary = "Lists the jobs of the service.",
                   .details = "",
                   .words = {},
                   .options = {coordinator_option(),
                               {.name = "--all",
                                .value = "",
                                .doc = "also jobs that have ended",
                                .kind = ArgKind::kFlag},
                               output_option()},
                   .examples = {"swax list --all"},
                   .run = verb_list});
  verbs.push_back({.name = "watch",
                   .summary = "Shows a job's progress as it comes.",
                   .details = "Ends with the job and its exit code; Ctrl-C ends only the watching.",
                   .words = {job_word()},
                   .options = {coordinator_option(), output_option()},
                   .examples = {"swax watch quickstart"},
                   .run = verb_watch});
  verbs.push_back(wait_verb());
  verbs.push_back(logs_verb());
  add_changes(&verbs);
  verbs.push_back({.name = "nodes",
                   .summary = "Lists the workers, their slots and what runs there.",
                   .details = "",
                   .words = {},
                   .options = {coordinator_option(), output_option()},
                   .examples = {"swax nodes"},
                   .run = verb_nodes});
  return verbs;
}

}  // namespace swax
