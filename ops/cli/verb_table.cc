#include "ops/cli/verb_table.h"

#include <unistd.h>

#include "ops/cli/client_session.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"
#include "ops/cli/run.h"
#include "ops/cli/slurm_verbs.h"
#include "ops/cli/spec_file.h"
#include "ops/cli/state_open.h"
#include "ops/cli/verbs.h"
#include "proto/base/build_info.h"

namespace swax {
namespace {

int run(const Args& args) {
  Result<std::vector<SpecOverride>> overrides = spec_overrides(args);
  if (!overrides.ok()) return fail(overrides.status());
  return verb_run({.spec_path = args.words().front(),
                   .overrides = std::move(overrides).value(),
                   .state_dir = args.text("--state"),
                   .output = args.text("--output"),
                   .terminal = is_terminal(STDERR_FILENO)});
}

int version(const Args& args) {
  if (args.text("--output") == "json") {
    print_json(Json::object()
                   .set("version", build_version())
                   .set("build_id", build_id())
                   .set("build_type", build_type()));
    return kExitOk;
  }
  print_line(std::string("swax ") + build_version() + " build " + build_id() + " " + build_type());
  return kExitOk;
}

OptionSpec run_state_option() {
  return {.name = "--state", .value = "DIR", .doc = "state folder of the run; default ./runs/NAME"};
}

// For verbs that ask the coordinator where no state folder is named.
OptionSpec run_folder_option() {
  return {.name = "--state", .value = "DIR", .doc = "state folder of a run of `swax run`"};
}

WordSpec job_or_none() { return {.name = "JOB", .doc = "name of a job of the service", .min = 0}; }

WordSpec spec_word() { return {.name = "FILE", .doc = "job spec (TOML), at most 256 KiB"}; }

void add_spec_verbs(std::vector<VerbSpec>* verbs) {
  verbs->push_back({.name = "validate",
                    .summary = "Checks a job spec and names every problem with its line.",
                    .details = "Creates nothing. Exit code 2 when the spec is not valid.",
                    .words = {spec_word()},
                    .options = {set_option(), ranks_option(), output_option()},
                    .examples = {"swax validate jobs/quickstart.toml --set training.steps=50"},
                    .run = verb_validate});
  verbs->push_back(
      {.name = "plan",
       .summary = "Shows what a job spec asks for: size, memory, work, schedule, data.",
       .details =
           "Memory is that of one rank on the spec's backend, for each allowed number of ranks. "
           "It is measured by running the model's own code without memory behind it. "
           "Creates nothing.",
       .words = {spec_word()},
       .options = {set_option(), ranks_option(), run_state_option(), output_option()},
       .examples = {"swax plan jobs/nano.toml --ranks 4", "swax plan jobs/swax-1.4b.toml -o json"},
       .run = verb_plan});
  verbs->push_back(
      {.name = "run",
       .summary = "Trains a job on this machine, through crashes, to its end.",
       .details =
           "Typed again with the same state folder it goes on from the newest checkpoint, "
           "or prints the result of the run that has ended. Ctrl-C saves and leaves; a "
           "second Ctrl-C kills. A coordinator and a worker are inside; what they say "
           "stands in DIR/run.log.\nExit codes: 0 SUCCEEDED, 10 FAILED, 130 or 143 stopped by "
           "Ctrl-C or SIGTERM, 4 the state folder belongs to another spec or to a run that "
           "works right now, or its records cannot be read.",
       .words = {spec_word()},
       .options = {run_state_option(), ranks_option(), set_option(), output_option()},
       .examples = {"swax run jobs/quickstart.toml --ranks 2 --set training.steps=50"},
       .run = run});
}

VerbSpec generate_verb() {
  return {.name = "generate",
          .summary = "Writes text with the weights of a checkpoint.",
          .details =
              "DIR is that of a run or of a coordinator. The same arguments give the same text. "
              "Run by swax-train, which must lie beside swax and be of the same build.",
          .words = {},
          .options = {state_option(),
                      service_job_option(),
                      service_store_option(),
                      {.name = "--prompt", .value = "TEXT", .doc = "text to go on from"},
                      {.name = "--tokens",
                       .value = "N",
                       .doc = "number of tokens to write",
                       .kind = ArgKind::kInteger,
                       .fallback = "200",
                       .min = 1,
                       .max = 1e9},
                      {.name = "--temperature",
                       .value = "X",
                       .doc = "0 takes the most likely token each time",
                       .kind = ArgKind::kReal,
                       .fallback = "0.8",
                       .min = 0,
                       .max = 100},
                      {.name = "--top-k",
                       .value = "K",
                       .doc = "choose among the K likeliest; 0: all",
                       .kind = ArgKind::kInteger,
                       .fallback = "40",
                       .min = 0,
                       .max = 1048576},
                      {.name = "--seed",
                       .value = "S",
                       .doc = "seed of the choices",
                       .kind = ArgKind::kInteger,
                       .fallback = "0"},
                      {.name = "--step",
                       .value = "N",
                       .doc = "checkpoint of this step; default the newest good one",
                       .kind = ArgKind::kInteger}},
          .examples = {"swax generate --state runs/quickstart --prompt 'In the beginning' "
                       "--tokens 300"},
          .run = verb_generate};
}

void add_run_verbs(std::vector<VerbSpec>* verbs) {
  verbs->push_back({.name = "status",
                    .summary = "Says what a job or a run is doing, why, and what to do.",
                    .details = "Asks the coordinator: about JOB, or about the service and its "
                               "active jobs. With --state it reads a state folder of `swax run`, "
                               "beside the run that works on it.",
                    .words = {job_or_none()},
                    .options = {coordinator_option(), run_folder_option(), output_option()},
                    .examples = {"swax status --state runs/quickstart", "swax status quickstart"},
                    .run = verb_status});
  verbs->push_back(
      {.name = "events",
       .summary = "Lists what happened to a job or a run, oldest first.",
       .details = "With -f and -o json one object a line.",
       .words = {job_or_none()},
       .options = {coordinator_option(), run_folder_option(), follow_option(), output_option()},
       .examples = {"swax events --state runs/quickstart", "swax events quickstart -f"},
       .run = verb_events});
  verbs->push_back({.name = "checkpoints list",
                    .summary = "Lists the checkpoints of a job or a run, newest first.",
                    .details = "With --state also what is wrong with them: DIR of a run, or the "
                               "state of a coordinator.",
                    .words = {job_or_none()},
                    .options = {coordinator_option(), run_folder_option(), service_job_option(),
                                service_store_option(), output_option()},
                    .examples = {"swax checkpoints list --state runs/quickstart"},
                    .run = verb_checkpoints_list});
  verbs->push_back(
      {.name = "checkpoints verify",
       .summary = "Reads checkpoints wholly and checks every digest.",
       .details = "Of a run, or, where DIR is the state of a coordinator, of one of its jobs. "
                  "Without STEP all committed ones. Exit code 4 when one is damaged.",
       .words = {{.name = "STEP", .doc = "only the checkpoint of this step", .min = 0}},
       .options = {state_option(), service_job_option(), service_store_option(), output_option()},
       .examples = {"swax checkpoints verify 200 --state runs/quickstart",
                    "swax checkpoints verify --state runs/service --job quickstart"},
       .run = verb_checkpoints_verify});
  verbs->push_back(
      {.name = "diff",
       .summary = "Finds the first step, tensor and element in which two runs differ.",
       .details = "Compares the bits of loss and gradient norm of each step that both runs have, "
                  "the digests of every tensor where both recorded them (debug.hash_every), and "
                  "the checkpoints of the same step. Exit code 0: nothing differs; 4: the runs "
                  "differ.",
       .words = {{.name = "A", .doc = "state folder of one run"},
                 {.name = "B", .doc = "state folder of the other run"}},
       .options = {output_option()},
       .examples = {"swax diff runs/quickstart runs/again"},
       .run = verb_diff});
  verbs->push_back(generate_verb());
}

OptionSpec data_option() {
  return {.name = "--data",
          .value = "DIR",
          .doc = "a data set, or a folder with data sets in it",
          .required = true};
}

VerbSpec data_build_verb() {
  return {.name = "data build",
          .summary = "Builds a data set of bytes from text, JSONL or debian:kjv.",
          .details =
              "The data set is a folder below DIR, named by its digest: the same documents "
              "give the same digest on every machine. Files may be packed with gzip or zstd.",
          .words = {{.name = "INPUT",
                     .doc = "a file, or debian:kjv (package bible-kjv-text)",
                     .max = 100000}},
          .options =
              {{.name = "--name", .value = "NAME", .doc = "name of the data set", .required = true},
               {.name = "--out", .value = "DIR", .doc = "folder to build it in", .required = true},
               {.name = "--documents",
                .value = "RULE",
                .doc = "what a document is: a line, a file, or auto (JSONL line, block "
                       "between blank lines, chapter)",
                .fallback = "auto",
                .one_of = "auto|file|line"},
               {.name = "--jsonl-field",
                .value = "KEY",
                .doc = "key of the text in JSONL",
                .fallback = "text"},
               {.name = "--validation-fraction",
                .value = "F",
                .doc = "share of the documents held out for validation",
                .kind = ArgKind::kReal,
                .fallback = "0.05",
                .min = 0,
                .max = 0.999999},
               {.name = "--license", .value = "TEXT", .doc = "licence to record"},
               {.name = "--lossy",
                .value = "",
                .doc = "keep bytes that are not UTF-8",
                .kind = ArgKind::kFlag},
               output_option()},
          .examples = {"swax data build --name kjv --out data debian:kjv",
                       "swax data build --name web --out data a.jsonl.zst b.jsonl.zst"},
          .run = verb_data_build};
}

void add_data_verbs(std::vector<VerbSpec>* verbs) {
  verbs->push_back(data_build_verb());
  verbs->push_back({.name = "data verify",
                    .summary = "Reads data sets wholly and checks every digest.",
                    .details = "Exit code 4 when one is damaged.",
                    .words = {},
                    .options = {data_option(), output_option()},
                    .examples = {"swax data verify --data runs/quickstart/store/data"},
                    .run = verb_data_verify});
  verbs->push_back({.name = "data list",
                    .summary = "Lists the data sets in a folder.",
                    .details = "",
                    .words = {},
                    .options = {data_option(), output_option()},
                    .examples = {"swax data list --data runs/quickstart/store/data"},
                    .run = verb_data_list});
  verbs->push_back({.name = "data describe",
                    .summary = "Shows the manifest of a data set.",
                    .details = "",
                    .words = {},
                    .options = {data_option(), output_option()},
                    .examples = {"swax data describe --data runs/quickstart/store/data"},
                    .run = verb_data_describe});
  verbs->push_back(
      {.name = "data baseline",
       .summary = "Bits per byte of n-gram models on the validation split.",
       .details = "Interpolated Witten-Bell, counted on the training split and scored on exactly "
                  "the targets that the run's validation scores. Shows the asked order beside "
                  "3, 4 and 5. Give --state or --data.",
       .words = {},
       .options = {{.name = "--state", .value = "DIR", .doc = "state folder of a run"},
                   {.name = "--data", .value = "DIR", .doc = "a data set"},
                   {.name = "--seq-len",
                    .value = "T",
                    .doc = "tokens of a sequence; default the run's, or 512",
                    .kind = ArgKind::kInteger,
                    .min = 1,
                    .max = 1048576},
                   {.name = "--order",
                    .value = "N",
                    .doc = "longest n-gram in bytes",
                    .kind = ArgKind::kInteger,
                    .fallback = "4",
                    .min = 1,
                    .max = 8},
                   output_option()},
       .examples = {"swax data baseline --state runs/quickstart --order 4"},
       .run = verb_data_baseline});
}

}  // namespace

std::vector<VerbSpec> verb_table() {
  std::vector<VerbSpec> verbs;
  add_spec_verbs(&verbs);
  for (VerbSpec& verb : client_verbs()) verbs.push_back(std::move(verb));
  add_run_verbs(&verbs);
  add_data_verbs(&verbs);
  verbs.push_back(coordinator_verb());
  verbs.push_back(worker_verb());
  verbs.push_back(doctor_verb());
  for (VerbSpec& verb : slurm_verbs()) verbs.push_back(std::move(verb));
  verbs.push_back({.name = "version",
                   .summary = "Shows version and build.",
                   .details = "",
                   .words = {},
                   .options = {output_option()},
                   .examples = {"swax version -o json"},
                   .run = version});
  return verbs;
}

}  // namespace swax
