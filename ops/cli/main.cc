// swax: the command line. Verbs are rows of verb_table; results go to stdout, messages to stderr.
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "ops/cli/args.h"
#include "ops/cli/output.h"
#include "ops/cli/verb_table.h"
#include "proto/base/failpoint.h"
#include "proto/base/log.h"
#include "storage/rocks_kv.h"
#include "worker/agent/launch_proxy.h"
#include "worker/agent/srun_rank.h"

namespace swax {
namespace {

int run_program(const std::vector<std::string>& words) {
  // Started by mpirun or srun, whose words are not ours to read.
  if (words.size() > 2 && words[0] == "launch-proxy")
    return run_launch_proxy(words[1], {words.begin() + 2, words.end()});
  if (words.size() > 2 && words[0] == "srun-rank")
    return run_srun_rank(words[1], {words.begin() + 2, words.end()});
  const std::vector<VerbSpec> verbs = verb_table();
  const Result<CommandLine> line = parse_command_line(verbs, words);
  if (!line.ok()) return fail(line.status());
  if (line->verb == nullptr) {
    print(line->help);
    return kExitOk;
  }
  if (const Status logging = log_init({}); !logging.ok()) return fail(logging);
  return line->verb->run(line->args);
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  swax::configure_malloc_for_storage();
  swax::failpoints_init(-1);
  int exit_code = swax::kExitInternal;
  try {
    exit_code = swax::run_program({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const std::exception& error) {
    swax::print_message(std::string("internal error: ") + error.what());
  }
  return swax::finish_output(exit_code);
}
