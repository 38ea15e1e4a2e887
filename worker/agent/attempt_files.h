// Where an attempt of the service lies on disk, and its session folder below /tmp, which has the
// same short path on every node of a gang. What a killed agent leaves is found by its notes.
// Threads: pure functions on the file system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "proto/control.pb.h"
#include "worker/agent/core/types.h"
#include "worker/agent/mpirun.h"

namespace swax {

struct AttemptPaths {
  AttemptPaths(const std::string& store, const std::string& job, uint64_t epoch);
  std::string data;        // <store>/data
  std::string job_folder;  // <store>/jobs/J
  std::string attempt;     // <store>/jobs/J/attempts/aE: where failing ranks leave their reason
  std::string spec;        // binary, resolved
  std::string checkpoints, records, logs, mpirun_log, srun_log;
};

// kInvalidArgument: the job's name is no folder name.
Status make_attempt_folders(const std::string& store, const pb::StartAttempt& start);
// The lead's part: spec.pb, and what older attempts left is removed.
Status write_attempt_spec(const std::string& store, const pb::StartAttempt& start);

std::string gang_session_folder(const std::string& store, const std::string& job, uint64_t epoch);
// Several agents of one machine share it. kFailedPrecondition: it belongs to somebody else.
Status make_session_folder(const std::string& folder);
Status remove_session(const std::string& folder, const std::string& note);  // empty: only the note
Status sweep_sessions(const std::string& notes);  // every one that a note names

// The nodes in the order of their ranks, the lead first and named localhost. kInvalidArgument: the
// ranks of a node do not follow each other, or the first is not the lead's.
Result<std::vector<MpirunHost>> gang_hosts(const pb::StartAttempt& start);

// What the launcher's log says last: the first line of a program of ours in its last 16 KiB, else
// its end. Empty: nothing.
std::string tail_of(const std::string& log);

// What failing ranks left in the attempt's folder (failure-rank-R), the oldest first.
std::vector<agent::RankFailure> read_failures(const std::string& attempt);

}  // namespace swax
