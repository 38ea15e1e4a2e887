// The node agent as a pure function: no clock, log, socket, file, thread, hash table or std random.
// Commands are executed in order; SaveOutbox is synced before a Send that follows it. One attempt of a job at a time; an older epoch than
// ever accepted is refused; what the coordinator does not want (HeartbeatReply.wanted, StopAttempt) is killed; while the coordinator is
// away everything goes on and the outbox grows within its limits.
#pragma once

#include <vector>

#include "worker/agent/core/types.h"

namespace swax::agent {

std::vector<Command> step(State& state, const Config& config, const Event& event);

}  // namespace swax::agent
