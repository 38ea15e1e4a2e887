// Keeps a log that another process appends to within a size, without that process knowing: its
// beginning and its newest part stay where they are, and what lies between gives its disk space
// back as a hole in the file. Readers see the hole (SEEK_DATA) and can say how much is missing.
// Where the file system makes no holes, the log is cut behind its beginning. Threads: pure
// functions on the file system.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/status.h"

namespace swax {

constexpr int64_t kLogBytesMax = int64_t{256} << 20;  // of one rank and attempt

// A log that takes up to bytes_max on the disk is left alone: 0. Of a larger one an eighth of that
// at its beginning and half of it at its end stay; returns how many bytes are missing between them
// now. No such file is no error.
Result<int64_t> limit_log(const std::string& path, int64_t bytes_max);

}  // namespace swax
