#include "kernels/device.h"

#include <atomic>

namespace swax {

uint64_t Stream::next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Buffer& Buffer::operator=(Buffer&& o) noexcept {
  if (this == &o) return *this;
  reset();
  data_ = o.data_;
  bytes_ = o.bytes_;
  free_ = o.free_;
  context_ = o.context_;
  o.data_ = nullptr;
  o.bytes_ = 0;
  o.free_ = nullptr;
  o.context_ = nullptr;
  return *this;
}

void Buffer::reset() {
  if (free_ != nullptr) free_(context_, data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
  free_ = nullptr;
  context_ = nullptr;
}

}  // namespace swax
