// The agent's commands that wait behind a batch which cannot be written (disk full), kept few for
// as long as that lasts. Threads: pure functions.
#pragma once

#include <deque>
#include <functional>

#include "worker/agent/core/types.h"

namespace swax {

// Hands `pass` what needs nothing on disk: heartbeats, HELLO and GOODBYE, the line to the
// coordinator, and what ends ranks and worker, which a full disk must not keep alive. A Kill takes
// what waits of its attempt along: a launch after it would start what nobody kills any more. Drops
// runs of reports, which are sent again until they are acknowledged, and makes one batch of the
// batches.
void shorten_backlog(std::deque<agent::Command>* waiting,
                     const std::function<void(agent::Command)>& pass);

}  // namespace swax
