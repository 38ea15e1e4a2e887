// `swax worker`: runs ranks for a coordinator until a signal or the coordinator ends it.
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "ops/cli/output.h"
#include "ops/cli/verbs.h"
#include "ops/cli/worker_options.h"
#include "worker/agent/agent.h"

namespace swax {
namespace {

Result<AgentOptions> agent_options(const Args& args) {
  WorkerPlace place;
  place.node = args.text("--name");
  place.state = args.text("--state");
  place.coordinator = args.text("--coordinator");
  if (const char* address = std::getenv("SWAX_COORDINATOR");
      place.coordinator.empty() && address != nullptr)
    place.coordinator = address;
  if (place.coordinator.empty())
    return invalid_argument("--coordinator tcp://ADDRESS:PORT is missing (or SWAX_COORDINATOR)");
  const uint32_t cores = std::max(1U, std::thread::hardware_concurrency());
  place.slots = args.has("--slots") ? static_cast<uint32_t>(args.integer("--slots")) : cores;
  return worker_options(place);
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
