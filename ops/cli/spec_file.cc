#include "ops/cli/spec_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jobs/spec_place.h"
#include "ops/cli/output.h"
#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {

Result<std::string> read_spec_text(const std::string& path) {
  const std::string name = printable(path, 200);
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (!fd.valid()) return invalid_argument(name + ": " + ::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return invalid_argument(name + ": " + ::strerror(errno));
  if (S_ISDIR(info.st_mode)) return invalid_argument(name + ": is a folder, not a job spec");
  if (!S_ISREG(info.st_mode)) return invalid_argument(name + ": is not a regular file");
  const std::string limit = ": a job spec has at most " + group_digits(kSpecBytesMax) + " bytes";
  if (info.st_size > kSpecBytesMax)
    return invalid_argument(name + ": " + group_digits(info.st_size) + " bytes" + limit);
  std::string text;
  // The size is only what the file system says: some files have more than they say.
  while (static_cast<int64_t>(text.size()) <= kSpecBytesMax) {
    char buffer[16384];
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return invalid_argument(name + ": " + ::strerror(errno));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
  return invalid_argument(name + limit);
}

Result<std::vector<SpecOverride>> spec_overrides(const Args& args) {
  std::vector<SpecOverride> overrides;
  for (const std::string& text : args.list("--set")) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return invalid_argument("--set " + printable(text) +
                              ": must be KEY=VALUE, e.g. training.steps=50");
    overrides.push_back({.path = text.substr(0, equals), .value = text.substr(equals + 1)});
  }
  if (args.has("--ranks"))
    overrides.push_back({.path = "parallelism.ranks", .value = args.text("--ranks")});
  return overrides;
}

std::optional<pb::JobSpec> load_spec_file(const std::string& path,
                                          const std::vector<SpecOverride>& overrides,
                                          const SpecCheck& check) {
  const Result<std::string> text = read_spec_text(path);
  if (!text.ok()) {
    print_diagnostic(text.status().message());
    return std::nullopt;
  }
  SpecResult result = load_spec(*text, path, overrides);
  // load_spec shows at most kSpecProblemsShown + 1 problems, each of one line.
  for (const SpecProblem& problem : result.problems) print_diagnostic(problem.text());
  if (!result.ok()) return std::nullopt;
  if (!check) return std::move(result.spec);
  result.problems = check(result.spec);
  for (SpecProblem& problem : result.problems) {
    problem.where = spec_place(*text, path, overrides, problem.field);
    print_diagnostic(problem.text());
  }
  if (!result.ok()) return std::nullopt;
  return std::move(result.spec);
}

}  // namespace swax
