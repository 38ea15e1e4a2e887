// The rows of the verb table for `swax slurm`.
#include "ops/cli/slurm_verbs.h"

namespace swax {
namespace {

OptionSpec text_option(const char* name, const char* value, const char* doc) {
  return {.name = name, .value = value, .doc = doc};
}

std::vector<OptionSpec> script_options() {
  return {
      ranks_option(), set_option(),
      text_option("--state", "DIR", "of a job: folder that all nodes see; default ./runs/NAME"),
      text_option("--coordinator", "tcp://IP:PORT", "of a pool; default SWAX_COORDINATOR"),
      text_option("--request-id", "ID", "in the job's comment; the same again is the same job")};
}

std::vector<WordSpec> script_words() {
  return {{.name = "job|pool", .doc = "one training job, or workers for a coordinator"},
          {.name = "FILE", .doc = "job spec; its [resources] say what is asked for"}};
}

VerbSpec render_verb() {
  return {.name = "slurm render",
          .summary = "Prints the batch script of a training job or a pool of workers.",
          .details = "The script of ops/slurm with the numbers of the spec. Creates nothing.",
          .words = script_words(),
          .options = script_options(),
          .examples = {"swax slurm render job jobs/125m.toml > train.sbatch",
                       "swax slurm render pool jobs/125m.toml --coordinator tcp://10.0.0.5:7000"},
          .run = verb_slurm_render};
}

VerbSpec submit_verb() {
  VerbSpec verb{.name = "slurm submit",
                .summary = "Renders a batch script and hands it to sbatch, once.",
                .details =
                    "Spec and script are kept in STATE/slurm. When sbatch does not answer, the "
                    "queue is searched for the request id before it is tried again, every 30 s.\n"
                    "Exit codes: 2 the spec is wrong or the cluster refuses it (nothing is left "
                    "in the queue), 5 Slurm was not reached (the request id is printed).",
                .words = script_words(),
                .options = script_options(),
                .examples = {"swax slurm submit job jobs/125m.toml --set resources.partition=gpu"},
                .run = verb_slurm_submit};
  verb.options.push_back(output_option());
  return verb;
}

OptionSpec count_option(const char* name, const char* value, const char* doc) {
  OptionSpec option = text_option(name, value, doc);
  option.kind = ArgKind::kInteger;
  option.min = 1;
  option.max = 65536;
  return option;
}

VerbSpec worker_verb() {
  return {.name = "slurm worker",
          .summary = "The worker of a node, started by srun in a batch script.",
          .details =
              "Its name is that of node and Slurm job. The first signal: the ranks save and leave "
              "(exit 99); later ones change nothing.",
          .words = {},
          .options = {count_option("--port", "P", "of the coordinator where srun was started"),
                      text_option("--coordinator", "tcp://IP:PORT", "default SWAX_COORDINATOR"),
                      count_option("--slots", "K", "ranks that may run here; default 1"),
                      text_option("--state", "DIR", "default a folder below TMPDIR or /tmp")},
          .examples = {"srun swax slurm worker --coordinator tcp://10.0.0.5:7000 --slots 8"},
          .run = verb_slurm_worker};
}

VerbSpec serve_verb() {
  OptionSpec state = text_option("--state", "DIR", "folder that all nodes see");
  state.required = true;
  OptionSpec nodes = count_option("--nodes", "N", "begin when so many workers have come");
  nodes.fallback = "1";
  OptionSpec listen = text_option("--listen", "tcp://IP:PORT", "port 0 takes a free one");
  listen.fallback = "tcp://127.0.0.1:0";
  OptionSpec insecure{.name = "--insecure",
                      .value = "",
                      .doc = "serve an address that others reach, without keys",
                      .kind = ArgKind::kFlag};
  return {
      .name = "slurm serve",
      .summary = "The coordinator inside a batch script, for one training job.",
      .details =
          "Exit codes: 0 SUCCEEDED, 93 FAILED or CANCELLED, 78 spec or data are wrong, 99 saved "
          "and left after a signal or before the time limit, 75 the nodes that are left are too "
          "few.",
      .words = {{.name = "FILE", .doc = "job spec (TOML)"}},
      .options = {state, listen, insecure, ranks_option(), set_option(), nodes,
                  text_option("--port-file", "PATH", "write the port there"),
                  text_option("--lost-file", "PATH", "write the names of lost nodes there"),
                  output_option()},
      .examples = {"swax slurm serve job.toml --state runs/job --nodes 2 --listen tcp://0.0.0.0:0 "
                   "--insecure"},
      .run = verb_slurm_serve};
}

}  // namespace

std::vector<VerbSpec> slurm_verbs() {
  return {render_verb(), submit_verb(), worker_verb(), serve_verb()};
}

}  // namespace swax
