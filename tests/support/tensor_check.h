// Checks of tensors in tests: norm-wise error against a float64 reference, finiteness, seeded
// inputs, guarded buffers. Every random value is a pure function of (seed, stream, index):
// proto/base/rng. Threads: pure functions.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace swax::test {

// ||got - want|| / ||want||. 0 when both are zero everywhere, +inf when only `want` is or when got
// has a NaN or Inf.
double rel_error(std::span<const float> got, std::span<const double> want);
double rel_error(std::span<const double> got, std::span<const double> want);

// 0.5 * 2^-24 * sqrt(K) * c: K = longest sum, c = number of chained sums, both stated in the
// kernel's spec header.
double rounding_bound(int64_t longest_sum, double chained_sums);
// 2 * error of the simple form + 2^-26: the bound of a tuned form.
double tuned_bound(double simple_error);

// Error <= bound, sizes equal, all finite. The failure names the tensor, the error, the bound and
// the worst element.
//   EXPECT_TRUE(tensor_near("dq", got, want, bound));
testing::AssertionResult tensor_near(std::string_view name, std::span<const float> got,
                                     std::span<const double> want, double bound);
testing::AssertionResult tensor_near(std::string_view name, std::span<const double> got,
                                     std::span<const double> want, double bound);
testing::AssertionResult all_finite(std::string_view name, std::span<const float> x);
testing::AssertionResult all_finite(std::string_view name, std::span<const double> x);
// Equal bits, not equal values: -0 differs from 0, a NaN equals itself.
testing::AssertionResult same_bits(std::string_view name, std::span<const float> got,
                                   std::span<const float> want);

float bf16_round(float x);  // nearest bfloat16, ties to even; finite input
std::vector<double> widen(std::span<const float> x);
std::vector<float> narrow(std::span<const double> x);

// Inputs. With bf16 the values are exactly representable in bfloat16, so every backend reads the
// same numbers.
struct Draw {
  double mean = 0.0;
  double std = 1.0;
  bool bf16 = false;
};
std::vector<float> random_normal(uint64_t seed, std::string_view stream, int64_t count,
                                 const Draw& draw = {});
std::vector<float> random_uniform(uint64_t seed, std::string_view stream, int64_t count, double low,
                                  double high, bool bf16 = false);
std::vector<int32_t> random_ints(uint64_t seed, std::string_view stream, int64_t count,
                                 int32_t limit);  // 0 .. limit-1
// 1 at the listed tokens, 0 elsewhere.
std::vector<int32_t> doc_starts(int64_t tokens, std::initializer_list<int64_t> first_tokens);

// A buffer between two poisoned bands. The payload starts as NaN (all bytes 0xff), is aligned to 64
// bytes, and the bands are compared on destruction: a write outside fails the running test and
// names the buffer and the first changed offset.
class GuardedBytes {
 public:
  GuardedBytes(std::string name, int64_t bytes);
  ~GuardedBytes();
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* data() { return payload_; }
  const std::byte* data() const { return payload_; }
  int64_t bytes() const { return bytes_; }
  testing::AssertionResult intact() const;  // the same check, at any time
  void restore();  // poisons the bands again (after a failure that a test expects)

 private:
  std::string name_;
  int64_t bytes_;
  std::vector<std::byte> storage_;
  std::byte* payload_ = nullptr;
};

template <typename T>
class GuardedBuffer {
 public:
  GuardedBuffer(std::string name, int64_t count)
      : bytes_(std::move(name), count * static_cast<int64_t>(sizeof(T))), count_(count) {}
  GuardedBuffer(std::string name, std::span<const T> values)
      : GuardedBuffer(std::move(name), static_cast<int64_t>(values.size())) {
    if (!values.empty()) std::memcpy(bytes_.data(), values.data(), values.size_bytes());
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data()); }
  int64_t size() const { return count_; }
  std::span<T> span() { return {data(), static_cast<size_t>(count_)}; }
  std::span<const T> span() const { return {data(), static_cast<size_t>(count_)}; }
  std::vector<T> values() const { return {data(), data() + count_}; }
  testing::AssertionResult intact() const { return bytes_.intact(); }
  GuardedBytes& guard() { return bytes_; }

 private:
  GuardedBytes bytes_;
  int64_t count_;
};

}  // namespace swax::test
