// Bytes of a file, unpacked. The container is told by its magic bytes; a name ending in .gz or .zst
// must have them. Memory: buffers of fixed size, and for zstd at most its window (128 MiB).
// Threads: one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "proto/base/status.h"

namespace swax {

class ByteStream {
 public:
  static Result<std::unique_ptr<ByteStream>> open(const std::string& path);
  virtual ~ByteStream() = default;
  // Fills `out` wholly unless the end comes first; returns the number of bytes. kDataLoss: the
  // container ends early or is damaged.
  virtual Result<size_t> read(std::span<char> out) = 0;
  virtual int64_t stored_bytes_read() const = 0;  // of the file, before unpacking
};

}  // namespace swax
