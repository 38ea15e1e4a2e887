// The time limit of the Slurm job that this process runs in, and what may still be begun under it.
// Threads: read_slurm_limit blocks and starts a program; the rest are pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "proto/record.pb.h"

namespace swax {

struct SlurmLimit {
  int64_t left_s = 0;   // until Slurm ends the job
  int64_t limit_s = 0;  // what every incarnation of the job has
};

// "[days-][hours:]minutes:seconds" as squeue writes times. Nothing: UNLIMITED, INVALID, NOT_SET.
std::optional<int64_t> parse_slurm_seconds(std::string_view text);
// "LEFT|LIMIT", both as above. Nothing: no limit.
std::optional<SlurmLimit> parse_slurm_limit(std::string_view line);

// Of SLURM_JOB_ID, from squeue, else from SLURM_JOB_START_TIME and SLURM_JOB_END_TIME where Slurm
// sets them (not in 22.05). Nothing: no limit, or none that is told.
std::optional<SlurmLimit> read_slurm_limit();

// The longest of the newest attempts from its start to its first step, ms; 0: none made a step.
int64_t longest_startup_ms(const std::vector<pb::EventRecord>& events);

// When the ranks are told to leave, signal_s before the limit: ms on the clock of now_ms. INT64_MAX
// where there is no limit, and where no incarnation of the job has time for a start of startup_ms:
// waiting for the next one would not help.
int64_t leave_at_ms(const std::optional<SlurmLimit>& limit, int64_t signal_s, int64_t startup_ms,
                    int64_t now_ms);

}  // namespace swax
