// A new file written once, front to back, past the page cache: the caller fills one buffer while a
// thread of its own writes another. Through the page cache a checkpoint took 0.7 CPU seconds per
// GiB and half the rate of the raw disk, this way 0.5 and more of the rate (checkpoint_write_bench
// on a busy machine), and large checkpoints no longer fill memory that training wants.
// Internal to storage. Threads: an object belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "proto/base/status.h"

namespace swax {

class DirectFile {
 public:
  // Truncates an existing file. Where the file system has no direct writes (some tmpfs), it writes
  // through the page cache.
  static Result<std::unique_ptr<DirectFile>> create(const std::string& path);
  virtual ~DirectFile() = default;
  // An error of the writing thread comes out of the next call and stays: kResourceExhausted (disk
  // full), kDataLoss, kInternal.
  virtual Status append(std::string_view bytes) = 0;
  // Everything appended so far is on the disk, at exactly that size. Nothing may be appended
  // afterwards; a second call is ok.
  virtual Status finish() = 0;
  virtual uint64_t bytes() const = 0;
};

}  // namespace swax
