// Goal: opening, fingerprint, views, and the backend that only measures.
#include <gtest/gtest.h>

#include <string>

#include "kernels/backend_wrapper.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/measuring_backend.h"
#include "tests/kernels/op_check.h"

namespace swax::test {
namespace {

TEST(OpenBackend, NamesWhatIsNotThere) {
  BackendOptions o;
  o.kind = BackendKind::kCuda;
  const auto gpu = open_backend(o);  // there may be one
  if (!gpu.ok()) {
    EXPECT_EQ(gpu.status().code(), Code::kFailedPrecondition);
  }
  o.kind = BackendKind::kCpu;
  o.compute_threads = 0;
  EXPECT_EQ(open_backend(o).status().code(), Code::kInvalidArgument);
}

TEST(OpenBackend, FingerprintNamesLibrariesButNotThreads) {
  const std::string one = open_rig(1).backend->fingerprint();
  EXPECT_EQ(one, open_rig(3).backend->fingerprint());
  EXPECT_EQ(one.find("cpu glibc="), 0U) << one;
  EXPECT_NE(one.find(" openblas="), std::string::npos) << one;
  EXPECT_NE(one.find(" flags=avx2,fma"), std::string::npos) << one;
  const std::string plain = open_rig(1, true).backend->fingerprint();
  EXPECT_NE(plain.find(" gemm=plain"), std::string::npos) << plain;
  EXPECT_EQ(plain.find("openblas"), std::string::npos) << plain;
}

TEST(ThreadPool, RunsEveryPieceOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    cpu::ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      const int64_t pieces = round % 7;
      std::vector<int> runs(static_cast<size_t>(pieces), 0);
      std::vector<int> worker(static_cast<size_t>(pieces), 0);
      pool.run(pieces, [&](int64_t p, int w) {
        runs[static_cast<size_t>(p)] += 1;
        worker[static_cast<size_t>(p)] = w;
      });
      for (size_t p = 0; p < runs.size(); ++p) {
        EXPECT_EQ(runs[p], 1);
        EXPECT_LT(worker[p], std::min<int64_t>(threads, pieces));
      }
    }
  }
}

TEST(TensorView, RowsAndReshape) {
  std::vector<float> x(24);
  const Tensor t = f32(x, {4, 2, 3});
  const Tensor rows = t.rows(1, 2);
  EXPECT_EQ(rows.data, x.data() + 6);
  EXPECT_EQ(rows.elements(), 12);
  EXPECT_EQ(t.reshaped({8, 3}).row_stride, 3);
  const Tensor planned = Tensor::of(nullptr, DType::kF32, {4, 6}).rows(2, 2);
  EXPECT_EQ(planned.data, nullptr);
}

TEST(MeasuringBackend, CountsWorkAndBytesWithoutMemory) {
  MeasuringBackend backend;
  auto stream = backend.make_stream();
  ASSERT_TRUE(stream.ok());
  GemmArgs a;
  a.a = Tensor::of(nullptr, DType::kF32, {64, 32});
  a.b = Tensor::of(nullptr, DType::kF32, {16, 32});
  a.c = Tensor::of(nullptr, DType::kF32, {64, 16});
  a.trans_b = true;
  EXPECT_TRUE(backend.gemm(**stream, a).ok());
  EXPECT_EQ(backend.counts().flops, 2.0 * 64 * 32 * 16);
  a.b.dims[1] = 31;
  EXPECT_EQ(backend.gemm(**stream, a).code(), Code::kInvalidArgument);
  SwaArgs s;
  s.q_THE = s.o_THE = Tensor::of(nullptr, DType::kF32, {10, 2, 4});
  s.k_TGE = s.v_TGE = s.q_THE;
  s.lse_TH = Tensor::of(nullptr, DType::kF32, {10, 2});
  s.window = 3;
  EXPECT_TRUE(backend.swa(**stream, s).ok());
  // 1 + 2 + 8 * 3 visible pairs, 4 FLOPs for each of 2 x 4 elements.
  EXPECT_EQ(backend.counts().flops, 2.0 * 64 * 32 * 16 + 27.0 * 4 * 8);
  EXPECT_EQ(backend.counts().calls, 2);
  {
    auto one = backend.allocate(1000, MemoryKind::kDevice);
    auto two = backend.allocate(500, MemoryKind::kPinned);
    ASSERT_TRUE(one.ok());
    EXPECT_EQ(one->data(), nullptr);
    EXPECT_EQ(backend.counts().device_bytes, 1000);
    EXPECT_EQ(backend.counts().pinned_bytes, 500);
  }
  EXPECT_EQ(backend.counts().device_bytes, 0);
  EXPECT_EQ(backend.counts().device_bytes_max, 1000);
}

class RefusesFill final : public BackendWrapper {
 public:
  using BackendWrapper::BackendWrapper;
  Status fill(Stream&, const FillArgs&) override { return unavailable("refused"); }
};

TEST(BackendWrapper, ForwardsWhatIsNotOverridden) {
  Rig rig = open_rig();
  RefusesFill wrapper(*rig.backend);
  std::vector<float> x = {1.0F, 2.0F};
  const Tensor t = f32(x, {2});
  EXPECT_EQ(wrapper.fill(*rig.stream, {t, 0.0F}).code(), Code::kUnavailable);
  EXPECT_TRUE(wrapper.add(*rig.stream, {t, t, t}).ok());
  EXPECT_EQ(x[1], 4.0F);
  EXPECT_EQ(wrapper.fingerprint(), rig.backend->fingerprint());
}

}  // namespace
}  // namespace swax::test
