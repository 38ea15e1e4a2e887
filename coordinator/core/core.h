// The coordinator as pure functions over plain data: no clock, log, socket, file, thread, hash
// table or std random.
//   step         one event -> records and commands. It applies its own records to `state` (through
//                apply_record) as it goes.
//   apply_record the only writer of durable state, live and at replay.
//   reconcile    what the state implies should be true on the workers (START, STOP again), for one
//                node or all; step() sends it on start, at each HELLO and every second, so that a
//                lost command stalls nothing. Commands are absolute and fenced by (job, epoch).
// The shell journals Output::records, answers and taken in one synced batch before any command
// leaves. At start it replays them (apply_record, remember_answer, remember_taken), sets
// coordinator_epoch one higher than ever (synced) and gives Started.
// Invariants (tests/sim checks them): one attempt per slot; an acknowledged submit is never lost; a
// commit holds all ranks of one epoch; records of a job have no gaps; a terminal state is final;
// messages of an older epoch change nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/types.h"

namespace swax::coord {

Output step(State& state, const Config& config, const Event& event);

// A problem (gap, unknown kind, job missing, change after the end) comes back as text and nothing
// is changed; the shell then puts the job into Durable::held with hold_job.
std::optional<std::string> apply_record(Durable& durable, const pb::JobRecord& record);
void hold_job(Durable& durable, const std::string& job, std::string why);
void remember_answer(Durable& durable, const RequestAnswer& answer);
void remember_taken(Durable& durable, const ReportsTaken& taken);

// Messages to workers only; node empty: to all of them. Counts up state.vol.sequence.
std::vector<Command> reconcile(State& state, const Config& config, const std::string& node);

// Views (status_view.cc). step() answers submit, cancel, resume, list, status, nodes and
// checkpoints; the shell answers events, steps, logs and service from its store.
pb::JobStatus job_status(const State& state, const Config& config, const Job& job,
                         const Event& event);
pb::JobStatus held_status(const State& state, const std::string& job);
pb::NodeStatus node_status(const State& state, const Config& config, const Worker& worker,
                           int64_t now_ms);
// A record as a line of history; sequence is the record's number.
pb::EventRecord history_event(const pb::JobRecord& record);

}  // namespace swax::coord
