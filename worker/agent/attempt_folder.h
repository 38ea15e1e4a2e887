// The temporary folder of one attempt: session files and shared memory of mpirun and its ranks, and
// what failing ranks leave ("failure-rank-R", one line). Removed when the attempt has ended; what a
// killed launcher left is swept by the next one.
// Threads: one.
#pragma once

#include <string>
#include <vector>

#include "proto/base/status.h"

namespace swax {

// Where mpirun keeps its session: below `folder`, or, when that path is so long that a socket's
// name might not fit (sun_path has 107 bytes), a folder of ours below /tmp whose name follows from
// `folder`.
std::string session_folder(const std::string& folder);

// Both folders, fresh. kFailedPrecondition: the one below /tmp belongs to somebody else.
Status make_attempt_folder(const std::string& folder);
Status remove_attempt_folder(const std::string& folder);

// Removes every attempt folder in `attempts`. Call only when nothing runs there any more.
Status sweep_attempt_folders(const std::string& attempts);

struct RankFailure {
  int rank = -1;
  std::string reason;
};
// What ranks left before they ended, the earliest first.
std::vector<RankFailure> read_failures(const std::string& folder);

}  // namespace swax
