#include "tests/kernels/op_check.h"

#include <algorithm>

namespace swax::test {
namespace {

const Want& want_of(const std::vector<Want>& wants, const std::string& name) {
  for (const Want& w : wants) {
    if (w.name == name) return w;
  }
  ADD_FAILURE() << "no expected values for " << name;
  return wants.front();
}

}  // namespace

Rig open_rig(int compute_threads, bool plain_gemm) {
  BackendOptions options;
  options.compute_threads = compute_threads;
  options.plain_gemm = plain_gemm;
  Result<std::unique_ptr<Backend>> backend = open_backend(options);
  SWAX_CHECK(backend.ok());
  Rig rig;
  rig.backend = std::move(backend).value();
  Result<std::unique_ptr<Stream>> stream = rig.backend->make_stream();
  SWAX_CHECK(stream.ok());
  rig.stream = std::move(stream).value();
  return rig;
}

void check_op(const RunOp& run, const std::vector<Want>& wants) {
  for (const bool plain : {false, true}) {
    SCOPED_TRACE(plain ? "plain loops" : "BLAS");
    Outputs first;
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE("compute threads " + std::to_string(threads));
      Rig rig = open_rig(threads, plain);
      const Outputs got = run(rig);
      if (threads == 1) {
        EXPECT_EQ(got.size(), wants.size());
        for (const Output& o : got) {
          const Want& w = want_of(wants, o.name);
          EXPECT_TRUE(tensor_near(o.name, o.values, w.values, w.bound));
        }
        first = got;
        continue;
      }
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i].name, got[i].values, first[i].values));
      }
    }
  }
}

double worst_ratio(const Outputs& got, const std::vector<Want>& wants) {
  double worst = 0.0;
  for (const Output& o : got) {
    const Want& w = want_of(wants, o.name);
    worst = std::max(worst, rel_error(std::span<const float>(o.values), w.values) / w.bound);
  }
  return worst;
}

Tensor f32(const std::vector<float>& x, std::initializer_list<int64_t> dims) {
  const Tensor t = Tensor::of(const_cast<float*>(x.data()), DType::kF32, dims);
  SWAX_CHECK(t.elements() == static_cast<int64_t>(x.size()));
  return t;
}

Tensor f32(GuardedBuffer<float>& x, std::initializer_list<int64_t> dims) {
  const Tensor t = Tensor::of(x.data(), DType::kF32, dims);
  SWAX_CHECK(t.elements() == x.size());
  return t;
}

Tensor f64(GuardedBuffer<double>& x, std::initializer_list<int64_t> dims) {
  const Tensor t = Tensor::of(x.data(), DType::kF64, dims);
  SWAX_CHECK(t.elements() == x.size());
  return t;
}

Tensor i32(const std::vector<int32_t>& x, std::initializer_list<int64_t> dims) {
  if (x.empty()) return {};
  return Tensor::of(const_cast<int32_t*>(x.data()), DType::kI32, dims);
}

Tensor u8(const std::vector<uint8_t>& x, std::initializer_list<int64_t> dims) {
  if (x.empty()) return {};
  return Tensor::of(const_cast<uint8_t*>(x.data()), DType::kU8, dims);
}

}  // namespace swax::test
