// Memory, streams and events of one device. Buffers own; everything else is a handle.
// A stream runs what is enqueued on it in order. On the CPU a call runs at once and events are
// always complete; on a GPU a call returns before the work is done. `wait(stream, event)` makes the
// stream wait, never the host. Threads: a Stream belongs to one thread. Buffers may be made and
// freed by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/tensor.h"

namespace swax {

enum class BackendKind { kCpu, kCuda };
enum class MemoryKind {
  kDevice,  // where kernels read and write
  kPinned,  // host memory that the device can copy to and from without staging; plain memory on the
            // CPU
};

// Device memory that every stream of a backend holds for its own (products, partial sums).
constexpr int64_t stream_workspace_bytes(BackendKind kind) {
  return kind == BackendKind::kCuda ? int64_t{32} << 20 : 0;
}

// Opaque per backend; made by Backend::make_stream.
class Stream {
 public:
  Stream() : id_(next_id()) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  uint64_t id() const { return id_; }  // of no other stream of the process, earlier ones included

 private:
  static uint64_t next_id();
  uint64_t id_;
};

// A point in a stream. 0 is the event that is always complete.
struct Event {
  uint64_t id = 0;
};

// Owning, aligned to 256 bytes, never zeroed. Freed by the deleter of the backend that made it.
class Buffer {
 public:
  using Free = void (*)(void* context, void* data, int64_t bytes);
  Buffer() = default;
  Buffer(void* data, int64_t bytes, Free free, void* context)
      : data_(data), bytes_(bytes), free_(free), context_(context) {}
  ~Buffer() { reset(); }
  Buffer(Buffer&& o) noexcept { *this = static_cast<Buffer&&>(o); }
  Buffer& operator=(Buffer&& o) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  void reset();

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Free free_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace swax
