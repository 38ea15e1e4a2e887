// The digest of a run's state: XXH3-128 over (name, dtype, shape, the two sums) of every state
// tensor in id order, then the step. The sums are those of proto/base/hash.h digest_mix over the
// whole tensor. Ranks and the coordinator form it from the same sums. Threads: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "proto/base/hash.h"

namespace swax {

class StateDigest {
 public:
  // In id order. f32 tensors only.
  void add(std::string_view name, std::span<const int64_t> shape, uint64_t sum0, uint64_t sum1);
  // Once, at the end.
  Hash128 finish(int64_t step);

 private:
  Hasher128 hasher_;
};

}  // namespace swax
