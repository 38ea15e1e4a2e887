// Runs one op on every form of the CPU backend and compares it with the float64 reference: BLAS and
// plain loops inside the derived bound, equal bits for 1, 2 and 3 compute threads. Outputs start as
// NaN between guard bands (tests/support/tensor_check.h).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/reference/types.h"
#include "tests/support/tensor_check.h"

namespace swax::test {

struct Rig {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};
Rig open_rig(int compute_threads = 1, bool plain_gemm = false);

struct Output {
  std::string name;
  std::vector<float> values;
};
using Outputs = std::vector<Output>;

struct Want {
  std::string name;
  reference::Vec values;
  double bound;
};

const Want& want_of(const std::vector<Want>& wants, const std::string& name);

// What one run of an op produces, collected by name.
using RunOp = std::function<Outputs(Rig&)>;
void check_op(const RunOp& run, const std::vector<Want>& wants);
// The largest error over its bound of one run: > 1 means that the check would fail. For canaries.
double worst_ratio(const Outputs& got, const std::vector<Want>& wants);

// Views of test buffers.
Tensor f32(const std::vector<float>& x, std::initializer_list<int64_t> dims);
Tensor f32(GuardedBuffer<float>& x, std::initializer_list<int64_t> dims);
Tensor f64(GuardedBuffer<double>& x, std::initializer_list<int64_t> dims);
Tensor i32(const std::vector<int32_t>& x, std::initializer_list<int64_t> dims);
Tensor u8(const std::vector<uint8_t>& x, std::initializer_list<int64_t> dims);

}  // namespace swax::test
