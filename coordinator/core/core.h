// The coordinator as pure functions over plain data: no clock, log, socket, file, thread, hash table or std random.
//   step         one event -> records and commands. It applies its own records to `state` (through apply_record) as it goes.
//   apply_record the only writer of durable state, live and at replay.
//   reconcile    what the state implies should be true outside (START, STOP, WriteCommitted, Retire again): sent on start, at each HELLO
//                and every second, so that a lost command stalls nothing. Commands are absolute and fenced by (job, epoch).
// The shell journals Output::records and answers in one synced batch before any command leaves.
// Invariants (tests/sim checks them): one attempt per slot; an acknowledged submit is never lost; a commit holds all ranks of one epoch;
// records of a job have no gaps; a terminal state is final; messages of an older epoch change nothing.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/types.h"

namespace swax::coord {

Output step(State& state, const Config& config, const Event& event);
// kDataLoss-like problems (gap, unknown kind, job missing) come back as text; the shell then holds that job.
std::optional<std::string> apply_record(Durable& durable, const pb::JobRecord& record);
std::vector<Command> reconcile(const State& state, const Config& config, int64_t now_ms);

// Views (status_view.cc).
pb::JobStatus job_status(const State& state, const Config& config, const Job& job, int64_t now_ms);
pb::NodeStatus node_status(const State& state, const Config& config, const Worker& worker, int64_t now_ms);

}  // namespace swax::coord
