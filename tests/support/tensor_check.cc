#include "tests/support/tensor_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "proto/base/check.h"
#include "proto/base/hash.h"
#include "proto/base/rng.h"

namespace swax::test {
namespace {

constexpr int64_t kBandBytes = 256;  // on each side; a multiple of the alignment
constexpr int64_t kAlignment = 64;
constexpr std::byte kPoison{0xa5};
constexpr std::byte kUnwritten{0xff};  // all bits set is a NaN in every float format

template <typename T>
double relative(std::span<const T> got, std::span<const double> want) {
  SWAX_CHECK(got.size() == want.size());
  double difference = 0;
  double norm = 0;
  for (size_t e = 0; e < got.size(); ++e) {
    const double d = static_cast<double>(got[e]) - want[e];
    difference += d * d;
    norm += want[e] * want[e];
  }
  if (difference == 0) return 0;
  const double error = std::sqrt(difference) / std::sqrt(norm);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

template <typename T>
testing::AssertionResult finite(std::string_view name, std::span<const T> x) {
  for (size_t e = 0; e < x.size(); ++e) {
    if (!std::isfinite(x[e])) {
      return testing::AssertionFailure()
             << name << ": element " << e << " of " << x.size() << " is " << x[e];
    }
  }
  return testing::AssertionSuccess();
}

template <typename T>
testing::AssertionResult near(std::string_view name, std::span<const T> got,
                              std::span<const double> want, double bound) {
  if (got.size() != want.size()) {
    return testing::AssertionFailure()
           << name << ": " << got.size() << " elements, want " << want.size();
  }
  if (testing::AssertionResult result = finite(name, got); !result) return result;
  if (testing::AssertionResult result = finite(std::string(name) + " (reference)", want); !result)
    return result;
  const double error = relative(got, want);
  if (error <= bound) return testing::AssertionSuccess();
  size_t worst = 0;
  for (size_t e = 0; e < got.size(); ++e) {
    const double here = std::abs(static_cast<double>(got[e]) - want[e]);
    if (here > std::abs(static_cast<double>(got[worst]) - want[worst])) worst = e;
  }
  return testing::AssertionFailure()
         << name << ": relative error " << error << " > bound " << bound << "; worst element "
         << worst << " of " << got.size() << ": got " << got[worst] << ", want " << want[worst];
}

// One block per element; its first word decides.
double unit_at(uint64_t seed, uint64_t stream, uint64_t element) {
  const PhiloxBlock block = random_block(mix_bits(seed) ^ stream, Purpose::kTest, element);
  return unit_open_closed(block[0]);
}

}  // namespace

double rel_error(std::span<const float> got, std::span<const double> want) {
  return relative(got, want);
}
double rel_error(std::span<const double> got, std::span<const double> want) {
  return relative(got, want);
}

double rounding_bound(int64_t longest_sum, double chained_sums) {
  return 0.5 * std::ldexp(1.0, -24) * std::sqrt(static_cast<double>(longest_sum)) * chained_sums;
}

double tuned_bound(double simple_error) { return 2.0 * simple_error + std::ldexp(1.0, -26); }

testing::AssertionResult tensor_near(std::string_view name, std::span<const float> got,
                                     std::span<const double> want, double bound) {
  return near(name, got, want, bound);
}
testing::AssertionResult tensor_near(std::string_view name, std::span<const double> got,
                                     std::span<const double> want, double bound) {
  return near(name, got, want, bound);
}
testing::AssertionResult all_finite(std::string_view name, std::span<const float> x) {
  return finite(name, x);
}
testing::AssertionResult all_finite(std::string_view name, std::span<const double> x) {
  return finite(name, x);
}

testing::AssertionResult same_bits(std::string_view name, std::span<const float> got,
                                   std::span<const float> want) {
  if (got.size() != want.size()) {
    return testing::AssertionFailure()
           << name << ": " << got.size() << " elements, want " << want.size();
  }
  for (size_t e = 0; e < got.size(); ++e) {
    if (std::bit_cast<uint32_t>(got[e]) != std::bit_cast<uint32_t>(want[e])) {
      return testing::AssertionFailure() << name << ": bits of element " << e << " differ: got "
                                         << got[e] << ", want " << want[e];
    }
  }
  return testing::AssertionSuccess();
}

float bf16_round(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + ((bits >> 16) & 1U)) & 0xffff0000U);
}

std::vector<double> widen(std::span<const float> x) { return {x.begin(), x.end()}; }

std::vector<float> narrow(std::span<const double> x) {
  std::vector<float> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(),
                 [](double value) { return static_cast<float>(value); });
  return y;
}

std::vector<float> random_normal(uint64_t seed, std::string_view stream, int64_t count,
                                 const Draw& draw) {
  const uint64_t stream_hash = xxh3_64(stream);
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t e = 0; e < x.size(); ++e) {
    const double normal = static_cast<double>(normal_at(seed, stream_hash, e));
    const float value = static_cast<float>(draw.mean + draw.std * normal);
    x[e] = draw.bf16 ? bf16_round(value) : value;
  }
  return x;
}

std::vector<float> random_uniform(uint64_t seed, std::string_view stream, int64_t count, double low,
                                  double high, bool bf16) {
  const uint64_t stream_hash = xxh3_64(stream);
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t e = 0; e < x.size(); ++e) {
    const float value = static_cast<float>(low + (high - low) * unit_at(seed, stream_hash, e));
    x[e] = bf16 ? bf16_round(value) : value;
  }
  return x;
}

std::vector<int32_t> random_ints(uint64_t seed, std::string_view stream, int64_t count,
                                 int32_t limit) {
  SWAX_CHECK(limit > 0);
  const uint64_t stream_hash = xxh3_64(stream);
  std::vector<int32_t> x(static_cast<size_t>(count));
  for (size_t e = 0; e < x.size(); ++e) {
    const PhiloxBlock block = random_block(mix_bits(seed) ^ stream_hash, Purpose::kTest, e);
    x[e] = static_cast<int32_t>(block[0] % static_cast<uint32_t>(limit));
  }
  return x;
}

std::vector<int32_t> doc_starts(int64_t tokens, std::initializer_list<int64_t> first_tokens) {
  std::vector<int32_t> reset_T(static_cast<size_t>(tokens), 0);
  for (const int64_t t : first_tokens) reset_T.at(static_cast<size_t>(t)) = 1;
  return reset_T;
}

GuardedBytes::GuardedBytes(std::string name, int64_t bytes)
    : name_(std::move(name)), bytes_(bytes) {
  SWAX_CHECK(bytes >= 0);
  storage_.resize(static_cast<size_t>(bytes + 2 * kBandBytes + kAlignment), kPoison);
  const auto address =
      reinterpret_cast<uintptr_t>(storage_.data()) + static_cast<uintptr_t>(kBandBytes);
  const uintptr_t over = address % static_cast<uintptr_t>(kAlignment);
  const int64_t shift = over == 0 ? 0 : kAlignment - static_cast<int64_t>(over);
  payload_ = storage_.data() + kBandBytes + shift;
  std::fill(payload_, payload_ + bytes_, kUnwritten);
}

GuardedBytes::~GuardedBytes() { EXPECT_TRUE(intact()); }

testing::AssertionResult GuardedBytes::intact() const {
  const std::byte* end = storage_.data() + storage_.size();
  for (const std::byte* p = storage_.data(); p != end; ++p) {
    if (p >= payload_ && p < payload_ + bytes_) continue;
    if (*p != kPoison) {
      return testing::AssertionFailure()
             << name_ << ": byte at offset " << (p - payload_) << " was overwritten (" << bytes_
             << " bytes belong to it)";
    }
  }
  return testing::AssertionSuccess();
}

void GuardedBytes::restore() {
  std::fill(storage_.data(), payload_, kPoison);
  std::fill(payload_ + bytes_, storage_.data() + storage_.size(), kPoison);
}

}  // namespace swax::test
