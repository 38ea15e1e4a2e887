// Requests that the core does not answer because they are about the store or the process: events,
// steps, logs, service. Answers fit into a frame; a client asks on from where one ended.
// Threads: as the journal (the core thread).
#pragma once

#include "coordinator/core/core.h"
#include "coordinator/journal.h"
#include "coordinator/socket_loop.h"

namespace swax::coord {

bool answered_by_shell(const pb::Envelope& envelope);

struct QueryContext {
  const State& state;
  const Config& config;
  Journal& journal;
  SocketLoop::Counts counts;
};
pb::Reply answer_query(const QueryContext& context, const pb::Request& request);

// Takes rows from the end of a reply that would not fit into a frame, and says so in `error`.
void fit_reply(pb::Reply* reply);

}  // namespace swax::coord
