// The agent's commands that wait behind a batch which cannot be written (disk full), kept few for
// as long as that lasts. Threads: pure functions.
#pragma once

#include <deque>
#include <functional>

#include "worker/agent/core/types.h"

namespace swax {

// Passes on what tells nothing that must be on disk first (heartbeats, HELLO), drops runs of
// reports, which are sent again until they are acknowledged, and makes one batch of the batches.
void shorten_backlog(std::deque<agent::Command>* waiting,
                     const std::function<void(pb::Envelope)>& send);

}  // namespace swax
