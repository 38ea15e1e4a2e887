#include "worker/model/arena.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace swax {
namespace {

constexpr int64_t kAlignment = 256;
// Not a canonical address on any 64-bit machine we know: a use of it faults at once.
constexpr uintptr_t kMeasuringBase = uintptr_t{1} << 62;
constexpr int64_t kMeasuringCapacity = int64_t{1} << 56;
constexpr int kMeasuringRanges = 64;

int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Tensor view(void* data, DType dtype, std::span<const int64_t> dims) {
  SWAX_CHECK(!dims.empty());
  SWAX_CHECK(dims.size() <= 4);
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.rank = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), t.dims);
  t.row_stride = t.row_elements();
  return t;
}

}  // namespace

Arena Arena::measuring(int range) {
  SWAX_CHECK(range >= 0);
  SWAX_CHECK(range < kMeasuringRanges);
  Arena a;
  a.base_ = reinterpret_cast<unsigned char*>(
      kMeasuringBase + static_cast<uintptr_t>(range) * static_cast<uintptr_t>(kMeasuringCapacity));
  a.capacity_ = kMeasuringCapacity;
  a.measuring_ = true;
  return a;
}

Arena::Arena(void* base, int64_t capacity, Poison poison)
    : base_(static_cast<unsigned char*>(base)), capacity_(capacity), poison_(std::move(poison)) {
  SWAX_CHECK(capacity >= 0);
  SWAX_CHECK(reinterpret_cast<uintptr_t>(base) % kAlignment == 0);
}

Tensor Arena::take(DType dtype, std::initializer_list<int64_t> dims) {
  return take(dtype, std::span<const int64_t>(dims.begin(), dims.size()));
}

Tensor Arena::take(DType dtype, std::span<const int64_t> dims) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(base_) + static_cast<uintptr_t>(used_);
  const Tensor t = view(reinterpret_cast<void*>(address), dtype, dims);
  const int64_t bytes = align_up(t.bytes());
  SWAX_CHECK(bytes >= 0);
  SWAX_CHECK(bytes <= capacity_ - used_);
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return t;
}

void Arena::release(int64_t mark) {
  SWAX_CHECK(mark >= 0);
  SWAX_CHECK(mark <= used_);
#ifndef NDEBUG
  // All bits set is a NaN in every float type and an index no kernel accepts.
  if (!measuring_ && used_ > mark) {
    if (poison_) {
      poison_(base_ + mark, used_ - mark);
    } else {
      std::memset(base_ + mark, 0xff, static_cast<size_t>(used_ - mark));
    }
  }
#endif
  used_ = mark;
}

}  // namespace swax
