// Element-wise ops and the digest.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "proto/base/hash.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

constexpr int64_t kBlock = 1 << 16;  // elements of one piece

float from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f = 0.0F;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}

}  // namespace

Status CpuBackend::fill(Stream&, const FillArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("fill", {&a.x}));
  const int64_t n = a.x.elements();
  pool_.run(div_ceil(n, kBlock), [&](int64_t piece, int) {
    const int64_t begin = piece * kBlock;
    fill_with(a.x.f32() + begin, a.value, std::min(kBlock, n - begin));
  });
  return ok();
}

Status CpuBackend::add(Stream&, const AddArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("add", {&a.a, &a.b, &a.out}));
  const int64_t n = a.out.elements();
  pool_.run(div_ceil(n, kBlock), [&](int64_t piece, int) {
    const int64_t begin = piece * kBlock;
    const float* x = a.a.f32() + begin;
    const float* y = a.b.f32() + begin;
    float* out = a.out.f32() + begin;
    for_lanes(std::min(kBlock, n - begin), [&](int64_t i, int64_t lanes) {
      store(out + i, load(x + i, lanes) + load(y + i, lanes), lanes);
    });
  });
  return ok();
}

Status CpuBackend::cast(Stream&, const CastArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("cast", {&a.from, &a.to}, false));
  const int64_t n = a.to.elements();
  const bool down = a.to.dtype == DType::kBF16;
  pool_.run(div_ceil(n, kBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(n, (piece + 1) * kBlock);
    if (down) {
      auto* to = static_cast<uint16_t*>(a.to.data);
      for (int64_t i = piece * kBlock; i < end; ++i) to[i] = to_bf16(a.from.f32()[i]);
    } else {
      const auto* from = static_cast<const uint16_t*>(a.from.data);
      for (int64_t i = piece * kBlock; i < end; ++i) a.to.f32()[i] = from_bf16(from[i]);
    }
  });
  return ok();
}

Status CpuBackend::digest(Stream&, const DigestArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("digest", {&a.x, &a.sums}));
  const int64_t n = a.x.elements();
  std::atomic<uint64_t> total0{0};
  std::atomic<uint64_t> total1{0};
  pool_.run(div_ceil(n, kBlock), [&](int64_t piece, int) {
    uint64_t sum0 = 0;
    uint64_t sum1 = 0;
    const int64_t end = std::min(n, (piece + 1) * kBlock);
    for (int64_t i = piece * kBlock; i < end; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, a.x.f32() + i, sizeof(bits));
      const uint64_t element = a.first_element + static_cast<uint64_t>(i);
      sum0 += digest_mix(0, a.name_hash, element, bits);
      sum1 += digest_mix(1, a.name_hash, element, bits);
    }
    total0.fetch_add(sum0, std::memory_order_relaxed);
    total1.fetch_add(sum1, std::memory_order_relaxed);
  });
  int64_t* sums = a.sums.i64();
  sums[0] = static_cast<int64_t>(static_cast<uint64_t>(sums[0]) + total0.load());
  sums[1] = static_cast<int64_t>(static_cast<uint64_t>(sums[1]) + total1.load());
  return ok();
}

}  // namespace swax::cpu
