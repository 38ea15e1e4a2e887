// `swax generate`: the weights are used by swax-train, the program beside this one. It takes this
// process over, so that its output, exit code and signals need no hand between.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "ops/cli/output.h"
#include "ops/cli/state_open.h"
#include "ops/cli/train_program.h"
#include "ops/cli/verbs.h"

namespace swax {
namespace {

Status generate(const Args& args) {
  SWAX_ASSIGN(const OpenRun run, open_run(args.text("--state")));
  SWAX_ASSIGN(const std::string program, train_program());
  std::vector<std::string> words = {
      program,         "generate",
      "--spec",        run.state.spec_path(),
      "--checkpoints", run.state.checkpoints_folder(run.view.run.spec.job().name())};
  for (const char* option :
       {"--prompt", "--tokens", "--temperature", "--top-k", "--seed", "--step"}) {
    if (!args.has(option)) continue;
    words.push_back(option);
    words.push_back(args.text(option));
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  return internal_error(program + ": " + std::strerror(errno));
}

}  // namespace

int verb_generate(const Args& args) { return fail(generate(args)); }

}  // namespace swax
