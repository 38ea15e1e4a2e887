// Arena: one block of memory, handed out in LIFO order. The same code run on a measuring arena (no
// memory behind it) gives the plan: planned bytes = used bytes by construction, and the trainer
// asserts it. take() aligns to 256 bytes and aborts (SWAX_CHECK) when the block is too small: that
// is a planning bug, never a user's error. `base` is aligned to 256 bytes and outlives the arena.
// Debug builds poison what is released: by the host, or, for device memory, by the function given.
// A measuring arena hands out addresses in a range that is never mapped; they must not be
// dereferenced. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>

#include "kernels/tensor.h"

namespace swax {

class Arena {
 public:
  // Arenas of different ranges hand out different addresses, so that checks for aliases stay true.
  static Arena measuring(int range = 0);
  // Sets every bit of `bytes` bytes behind everything enqueued so far.
  using Poison = std::function<void(void* data, int64_t bytes)>;
  Arena(void* base, int64_t capacity, Poison poison = {});
  Tensor take(DType dtype, std::initializer_list<int64_t> dims);
  Tensor take(DType dtype, std::span<const int64_t> dims);
  int64_t mark() const { return used_; }
  void release(int64_t mark);  // everything taken after mark() is gone; poisoned in debug builds
                               // (not measuring)
  int64_t peak() const { return peak_; }
  int64_t used() const { return used_; }
  int64_t capacity() const { return capacity_; }
  bool is_measuring() const { return measuring_; }
  void reset_peak() { peak_ = used_; }

 private:
  Arena() = default;
  unsigned char* base_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  int64_t peak_ = 0;
  bool measuring_ = false;
  Poison poison_;
};

}  // namespace swax
