// `swax worker`: runs ranks for a coordinator until a signal or the coordinator ends it.
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <thread>

#include "ops/cli/output.h"
#include "ops/cli/verbs.h"
#include "ops/cli/worker_data.h"
#include "proto/base/build_info.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "worker/agent/agent.h"
#include "worker/agent/mpirun.h"

namespace swax {
namespace {

// "train_floor_ms=500,launch_limit_ms=2000": shorter patience, for tests.
Status apply_test_times(std::string_view list, agent::Config* config) {
  const std::map<std::string_view, int64_t*> fields{
      {"train_floor_ms", &config->train_floor_ms},
      {"train_factor", &config->train_factor},
      {"launch_limit_ms", &config->launch_limit_ms},
      {"load_limit_ms", &config->load_limit_ms},
      {"save_limit_ms", &config->save_limit_ms},
      {"validate_limit_ms", &config->validate_limit_ms},
      {"leave_limit_ms", &config->leave_limit_ms},
      {"stop_grace_ms", &config->stop_grace_ms},
      {"silent_ms", &config->silent_ms}};
  for (const std::string_view entry : split(list, ',')) {
    const size_t equals = entry.find('=');
    const auto field = fields.find(entry.substr(0, equals));
    if (equals == std::string_view::npos || field == fields.end())
      return invalid_argument("SWAX_TEST_AGENT_TIMES: " + printable(entry));
    const std::string_view value = entry.substr(equals + 1);
    const auto end = std::from_chars(value.data(), value.data() + value.size(), *field->second);
    if (end.ec != std::errc{} || *field->second <= 0)
      return invalid_argument("SWAX_TEST_AGENT_TIMES: " + printable(entry));
  }
  return ok();
}

Result<std::string> own_program() {
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  if (n <= 0) return internal_error("/proc/self/exe cannot be read");
  return std::string(self, static_cast<size_t>(n));
}

Result<AgentOptions> agent_options(const Args& args) {
  AgentOptions options;
  options.node = args.text("--name");
  options.state = args.text("--state");
  options.coordinator = args.text("--coordinator");
  if (const char* address = std::getenv("SWAX_COORDINATOR");
      options.coordinator.empty() && address != nullptr)
    options.coordinator = address;
  if (options.coordinator.empty())
    return invalid_argument("--coordinator tcp://ADDRESS:PORT is missing (or SWAX_COORDINATOR)");
  const uint32_t cores = std::max(1U, std::thread::hardware_concurrency());
  options.timing.slots =
      args.has("--slots") ? static_cast<uint32_t>(args.integer("--slots")) : cores;
  if (const char* times = std::getenv("SWAX_TEST_AGENT_TIMES"))
    SWAX_TRY(apply_test_times(times, &options.timing));
  options.build_id = build_id();
  SWAX_ASSIGN(options.swax_program, own_program());
  options.train_program = join_path(parent_path(options.swax_program), "swax-train");
  if (::access(options.train_program.c_str(), X_OK) != 0)
    return not_found(options.train_program + " cannot be executed");
  const Result<std::string> mpirun = find_program("mpirun");
  if (!mpirun.ok()) return mpirun.status().with_context("apt-get install openmpi-bin");
  options.mpirun = *mpirun;
  options.prepare = worker_data_folders;
  return options;
}

int verb_worker(const Args& args) {
  Result<AgentOptions> options = agent_options(args);
  if (!options.ok()) return fail(options.status());
  const Result<std::unique_ptr<Agent>> agent = Agent::open(std::move(options).value());
  if (!agent.ok()) return fail(agent.status());
  return (*agent)->run();
}

}  // namespace

VerbSpec worker_verb() {
  return {.name = "worker",
          .summary = "Runs ranks on this node for a coordinator.",
          .details =
              "Keeps trying when the coordinator cannot be reached; running ranks go on without "
              "it, and what it must know is kept in the state folder. SIGTERM, SIGUSR1 or Ctrl-C: "
              "the ranks write a checkpoint and leave (exit 99); once more kills them. `kill -9` "
              "takes the ranks along, and the next start with the same state ends what is left.",
          .words = {},
          .options = {{.name = "--name",
                       .value = "NODE",
                       .doc = "unique name of this worker: a-z, 0-9, '.', '_', '-'",
                       .required = true},
                      {.name = "--state",
                       .value = "DIR",
                       .doc = "folder of its state; made when missing",
                       .required = true},
                      {.name = "--slots",
                       .value = "K",
                       .doc = "ranks that may run here at a time; default: cores",
                       .kind = ArgKind::kInteger,
                       .min = 1,
                       .max = 65536},
                      {.name = "--coordinator",
                       .value = "tcp://ADDRESS:PORT",
                       .doc = "literal address; default SWAX_COORDINATOR"}},
          .examples = {"swax worker --name n1 --slots 2 --state n1 --coordinator "
                       "tcp://127.0.0.1:7000"},
          .run = verb_worker};
}

}  // namespace swax
