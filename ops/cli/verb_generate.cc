// `swax generate`: the weights are used by swax-train, the program beside this one. It takes this
// process over, so that its output, exit code and signals need no hand between.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "ops/cli/output.h"
#include "ops/cli/state_open.h"
#include "ops/cli/train_program.h"
#include "ops/cli/verbs.h"
#include "proto/base/text.h"

namespace swax {
namespace {

// The folder of a run has its spec as a file; that of a service's job stands in the records only
// and is handed over as a descriptor, which leaves nothing behind.
Result<std::string> spec_path(const OpenRun& run) {
  if (!run.state.is_service()) return run.state.spec_path();
  const std::string bytes = run.view.run.spec.SerializeAsString();
  const int fd = ::memfd_create("spec", 0);  // open in the program that takes over
  const auto size = static_cast<ssize_t>(bytes.size());
  if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != size)
    return internal_error(std::string("memfd: ") + std::strerror(errno));
  return "/proc/self/fd/" + to_text(fd);
}

Status generate(const Args& args) {
  SWAX_ASSIGN(const OpenRun run, open_job(args));
  SWAX_ASSIGN(const std::string program, train_program());
  SWAX_ASSIGN(const std::string spec, spec_path(run));
  std::vector<std::string> words = {
      program, "generate",      "--spec",
      spec,    "--checkpoints", run.state.checkpoints_folder(run.view.run.spec.job().name())};
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
