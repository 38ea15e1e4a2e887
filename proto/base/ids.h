// Small integer helpers and the sized units of the project. No state.
#pragma once

#include <cstdint>

#include "proto/base/check.h"

namespace swax {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGiB = 1024 * kMiB;

constexpr int64_t div_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return div_ceil(a, b) * b; }
inline int64_t exact_div(int64_t a, int64_t b) {
  SWAX_CHECK(b != 0 && a % b == 0);
  return a / b;
}

}  // namespace swax
