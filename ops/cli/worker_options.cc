#include "ops/cli/worker_options.h"

#include <unistd.h>

#include "ops/cli/test_times.h"
#include "ops/cli/worker_data.h"
#include "proto/base/build_info.h"
#include "proto/base/files.h"
#include "worker/agent/mpirun.h"

namespace swax {
namespace {

// Shorter patience, smaller logs, for tests.
Status apply_limits(AgentOptions* options) {
  agent::Config* config = &options->timing;
  return apply_test_times("SWAX_TEST_AGENT_TIMES",
                          {{"log_bytes_max", &options->log_bytes_max},
                           {"train_floor_ms", &config->train_floor_ms},
                           {"train_factor", &config->train_factor},
                           {"launch_limit_ms", &config->launch_limit_ms},
                           {"load_limit_ms", &config->load_limit_ms},
                           {"save_limit_ms", &config->save_limit_ms},
                           {"validate_limit_ms", &config->validate_limit_ms},
                           {"leave_limit_ms", &config->leave_limit_ms},
                           {"stop_grace_ms", &config->stop_grace_ms},
                           {"silent_ms", &config->silent_ms}});
}

Result<std::string> own_program() {
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  if (n <= 0) return internal_error("/proc/self/exe cannot be read");
  return std::string(self, static_cast<size_t>(n));
}

}  // namespace

Result<AgentOptions> worker_options(const WorkerPlace& place) {
  AgentOptions options;
  options.node = place.node;
  options.state = place.state;
  options.coordinator = place.coordinator;
  options.timing.slots = place.slots;
  SWAX_TRY(apply_limits(&options));
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

}  // namespace swax
