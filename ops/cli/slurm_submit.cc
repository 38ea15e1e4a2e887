// `swax slurm render` and `swax slurm submit`. A Slurm job is submitted once: its comment has the
// request id, and before sbatch is tried again the queue is searched for it.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <thread>

#include "jobs/spec.h"
#include "ops/cli/client_session.h"
#include "ops/cli/output.h"
#include "ops/cli/slurm_command.h"
#include "ops/cli/slurm_queue.h"
#include "ops/cli/slurm_script.h"
#include "ops/cli/slurm_verbs.h"
#include "ops/cli/spec_file.h"
#include "ops/cli/state_dir.h"
#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kSbatchMs = 60'000;
constexpr int64_t kGapMs = 30'000;  // controllers count the calls of a user: at most one a gap
constexpr int kTries = 8;

// Tests wait less.
int64_t milliseconds(const char* variable, int64_t usual) {
  const char* text = std::getenv(variable);
  int64_t value = usual;
  if (text != nullptr) std::from_chars(text, text + std::string_view(text).size(), value);
  return value;
}

std::string absolute(const std::string& path) {
  char here[PATH_MAX];
  return ::getcwd(here, sizeof here) == nullptr ? path : join_path(here, path);
}

std::string own_path() {
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  return n > 0 ? std::string(self, static_cast<size_t>(n)) : "swax";
}

struct Asked {
  SlurmScript script;
  pb::JobSpec spec;
};

// Nothing: the problems were printed.
std::optional<Asked> read_asked(const Args& args) {
  const std::string& kind = args.words()[0];
  if (kind != "job" && kind != "pool") {
    print_message(printable(kind) + ": must be job or pool");
    return std::nullopt;
  }
  const Result<std::vector<SpecOverride>> overrides = spec_overrides(args);
  if (!overrides.ok()) {
    print_message(overrides.status().message());
    return std::nullopt;
  }
  std::optional<pb::JobSpec> spec = load_spec_file(args.words()[1], *overrides);
  if (!spec) return std::nullopt;
  Asked asked{.script = {}, .spec = std::move(*spec)};
  asked.script.pool = kind == "pool";
  asked.script.swax = own_path();
  asked.script.spec_path = absolute(args.words()[1]);
  const std::string& state = args.text("--state");
  asked.script.state =
      absolute(state.empty() ? default_state_folder(asked.spec.job().name()) : state);
  asked.script.request_id = args.text("--request-id");
  if (!asked.script.pool) return asked;
  const char* variable = std::getenv("SWAX_COORDINATOR");
  asked.script.coordinator = args.text("--coordinator");
  if (asked.script.coordinator.empty() && variable != nullptr) asked.script.coordinator = variable;
  if (!asked.script.coordinator.empty()) return asked;
  print_message("a pool needs --coordinator tcp://IP:PORT (or SWAX_COORDINATOR)");
  return std::nullopt;
}

// sbatch could not tell: it may have been taken.
bool may_have_arrived(const CommandResult& result) {
  constexpr std::array<std::string_view, 8> kPassing{"Unable to contact slurm controller",
                                                     "Socket timed out",
                                                     "Connection refused",
                                                     "Connection timed out",
                                                     "Communication connection failure",
                                                     "Zero Bytes were transmitted",
                                                     "Unable to connect",
                                                     "Transport endpoint"};
  if (result.timed_out || result.exit_code >= 128) return true;
  const std::string text = result.err + result.out;
  return std::any_of(kPassing.begin(), kPassing.end(), [&text](std::string_view words) {
    return text.find(words) != std::string::npos;
  });
}

int refused(const pb::JobSpec& spec, const std::string& slurm) {
  for (const std::string_view line : split(slurm, '\n'))
    if (!line.empty()) print_message("Slurm: " + one_line(line, 400));
  const pb::Resources& r = spec.resources();
  const SlurmShape shape = slurm_shape(spec);
  std::string asked = to_text(shape.nodes) + " nodes of " + to_text(shape.cpus_per_task) + " cores";
  if (r.gpus_per_node() > 0)
    asked += " and " + to_text(uint64_t{r.gpus_per_node()}) + " GPUs" +
             (r.gpu_type().empty() ? "" : " of type " + r.gpu_type());
  for (const auto& [name, value] :
       {std::pair("partition", r.partition()), std::pair("account", r.account()),
        std::pair("qos", r.qos()), std::pair("constraint", r.constraint())})
    if (!value.empty()) asked += std::string(", ") + name + " " + value;
  print_message("the cluster does not take this job: [resources] asks for " + asked +
                "; `sinfo -o '%P %l %G %f'` shows what there is. Nothing was submitted");
  return kExitUsage;
}

class Submission {
 public:
  Submission(std::string script_path, std::string request_id, const pb::JobSpec& spec)
      : path_(std::move(script_path)),
        comment_(slurm_comment(request_id)),
        request_id_(std::move(request_id)),
        spec_(spec) {}

  // The exit code; the job's number in `id`.
  int go(bool search_first, int64_t* id) {
    const int64_t gap_ms = milliseconds("SWAX_TEST_SLURM_GAP_MS", kGapMs);
    for (int tries = 1; tries <= kTries; ++tries) {
      if (tries > 1) std::this_thread::sleep_for(std::chrono::milliseconds(gap_ms));
      if (tries > 1 || search_first) {
        const Result<std::vector<SlurmJob>> found = find_slurm_jobs(comment_);
        if (!found.ok()) {
          print_message(found.status().message() + "; trying again");
          continue;
        }
        if (!found->empty()) return settle(*found, id);
      }
      const int code = try_once(id);
      if (code == kExitOk && tries > 1) return look_later(id, gap_ms);
      if (code >= 0) return code;
    }
    print_message("Slurm does not answer; request id " + request_id_ +
                  ": the same command with --request-id " + request_id_ +
                  " is carried out once in any case");
    return kExitUnreachable;
  }

 private:
  // -1: not known.
  int try_once(int64_t* id) {
    const int64_t limit_ms = milliseconds("SWAX_TEST_SLURM_SBATCH_MS", kSbatchMs);
    const CommandResult result = run_command({"sbatch", "--parsable", path_}, limit_ms);
    if (result.ok()) {
      // "12" or "12;cluster"
      std::from_chars(result.out.data(), result.out.data() + result.out.size(), *id);
      if (*id > 0) return look_again(id);
    }
    if (!result.ok() && !may_have_arrived(result)) return refused(spec_, said(result));
    print_message("no answer of sbatch" + (said(result).empty() ? "" : ": " + said(result)) +
                  "; the queue is searched for request id " + request_id_ +
                  " before it is tried again");
    return -1;
  }

  // What an earlier sbatch handed over may come into the queue after this one.
  int look_later(int64_t* id, int64_t gap_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(gap_ms));
    return look_again(id);
  }

  // It has a number. Is it the only one, and will it ever start?
  int look_again(int64_t* id) {
    const Result<std::vector<SlurmJob>> found = find_slurm_jobs(comment_);
    if (!found.ok() || found->empty()) return kExitOk;
    return settle(*found, id);
  }

  int settle(const std::vector<SlurmJob>& found, int64_t* id) {
    *id = found.front().id;
    for (size_t i = 1; i < found.size(); ++i) {
      print_message("job " + to_text(found[i].id) + " is the same request again, cancelled");
      run_command({"scancel", to_text(found[i].id)}, kSbatchMs);
    }
    if (!never_starts(found.front())) return kExitOk;
    run_command({"scancel", to_text(*id)}, kSbatchMs);
    return refused(spec_, "job " + to_text(*id) + " would wait for ever (" + found.front().reason +
                              "), cancelled");
  }

  const std::string path_, comment_, request_id_;
  const pb::JobSpec& spec_;
};

// The script and the spec as they are now: what is edited later changes nothing of this job.
Result<std::string> write_script(Asked* asked) {
  const std::string folder = join_path(asked->script.state, "slurm");
  SWAX_TRY(make_dirs(folder));
  const std::string stem = join_path(folder, asked->script.request_id);
  if (!asked->script.pool) {
    asked->script.spec_path = stem + ".toml";
    SWAX_TRY(write_atomic(asked->script.spec_path, spec_toml(asked->spec)));
  }
  SWAX_ASSIGN(const std::string text, render_script(asked->script, asked->spec));
  SWAX_TRY(write_atomic(stem + ".sbatch", text));
  return stem + ".sbatch";
}

void print_submitted(const Asked& asked, int64_t id, const std::string& output) {
  if (output == "json") {
    print_line(Json::object()
                   .set("schema_version", 1)
                   .set("slurm_job", id)
                   .set("request_id", asked.script.request_id)
                   .set("job", asked.spec.job().name())
                   .set("state_dir", asked.script.state)
                   .text(false));
    return;
  }
  print_line("Slurm job    " + to_text(id));
  print_line("request id   " + asked.script.request_id);
  if (!asked.script.pool) print_line("state        " + asked.script.state);
}

}  // namespace

int verb_slurm_render(const Args& args) {
  const std::optional<Asked> asked = read_asked(args);
  if (!asked) return kExitUsage;
  const Result<std::string> text = render_script(asked->script, asked->spec);
  if (!text.ok()) return fail(text.status());
  print(*text);
  return kExitOk;
}

int verb_slurm_submit(const Args& args) {
  std::optional<Asked> asked = read_asked(args);
  if (!asked) return kExitUsage;
  const bool given = args.has("--request-id");
  if (!given) asked->script.request_id = new_request_id();
  const Result<std::string> path = write_script(&*asked);
  if (!path.ok()) return fail(path.status());
  int64_t id = 0;
  Submission submission(*path, asked->script.request_id, asked->spec);
  const int code = submission.go(given, &id);
  if (code == kExitOk) print_submitted(*asked, id, args.text("--output"));
  return code;
}

}  // namespace swax
