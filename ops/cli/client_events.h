// Events of a job in the forms that `events` prints, and their way from the coordinator.
// Threads: one.
#pragma once

#include <cstdint>
#include <string>

#include "ops/cli/client_session.h"
#include "ops/cli/output.h"
#include "proto/record.pb.h"

namespace swax {

Json event_json(const pb::EventRecord& event);
std::string event_text(const pb::EventRecord& event);  // two lines

// At most a message full of events from number `from` on; none: there are no more.
pb::Reply read_events(ClientSession* session, const std::string& job, uint64_t from);

pb::Request status_request(const std::string& job);

}  // namespace swax
