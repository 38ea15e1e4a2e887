// What Slurm's queue says of jobs. The JSON of squeue differs between versions: a state is a word
// or a list of words, a number may be wrapped in an object, keys come and go. What cannot be read
// is left out. Where squeue gives no JSON its plain columns are read. Threads: may be called from
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"

namespace swax {

struct SlurmJob {
  int64_t id = 0;      // of an array: of the whole array
  std::string state;   // PENDING, RUNNING, ...; UNKNOWN where it cannot be read
  std::string reason;  // why it is pending
  std::string comment;
};

// kInvalidArgument: that is no answer of squeue. Rows without a job number are left out.
Result<std::vector<SlurmJob>> parse_squeue_json(std::string_view text);
std::vector<SlurmJob> parse_squeue_lines(std::string_view text);  // "ID|STATE|REASON|COMMENT"

// A value of "KEY=VALUE KEY=VALUE ..." as scontrol shows things; empty: none, or "(null)".
std::string slurm_field(std::string_view text, std::string_view key);

// Jobs with this comment, the oldest first, one row each; also those that ended a little while ago.
// kUnavailable: Slurm does not answer.
Result<std::vector<SlurmJob>> find_slurm_jobs(const std::string& comment);

// Such a job is not going to start: its reason is none that passes by itself.
bool never_starts(const SlurmJob& job);

}  // namespace swax
