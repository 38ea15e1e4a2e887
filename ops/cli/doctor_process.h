// The output of a program that may hang. Threads: call before other threads exist.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/status.h"

namespace swax {

// What `words[0]`, a path, with the other words prints to stdout (64 KiB at most).
// kFailedPrecondition when it does not end with 0, kDeadlineExceeded after timeout_ms; it is killed
// then.
Result<std::string> program_output(const std::vector<std::string>& words, int64_t timeout_ms);

}  // namespace swax
