// The node agent as a pure function: no clock, log, socket, file, thread, hash table or std random.
// Commands are executed in order; SaveOutbox is synced before what follows it. One epoch of a job
// at a time; an older epoch than ever accepted is refused, and an accepted one is started once
// only; never more ranks than slots, whatever arrives. What the coordinator does not want
// (HeartbeatReply.wanted, StopAttempt) is killed; while it is away everything goes on and the
// outbox grows within its limits. An attempt that cannot be running any more is reported as ended
// whenever the coordinator asks to start or stop it.
#pragma once

#include <vector>

#include "worker/agent/core/types.h"

namespace swax::agent {

std::vector<Command> step(State& state, const Config& config, const Event& event);

}  // namespace swax::agent
