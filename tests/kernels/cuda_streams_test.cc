// Goal: an op whose blocks draw their work from counters of its stream has the same bits whatever
// runs beside it. Method: the norm with its gates on two streams at once, again and again, by calls
// and as graphs, each result against that of one run alone; a graph on another stream than its own
// is refused. Skipped with the reason where there is no device.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/open.h"
#include "tests/kernels/cuda_device.h"
#include "tests/support/tensor_check.h"

namespace swax::test {
namespace {

constexpr int64_t kTokens = 6001;  // many more tiles than blocks begin with, the last one short
constexpr int64_t kHeads = 4;
constexpr int kRounds = 8;
constexpr int kCallsARound = 4;  // of each stream, so that the two overlap

DeviceTensor normal(const char* name, std::initializer_list<int64_t> dims) {
  int64_t count = 1;
  for (const int64_t d : dims) count *= d;
  return {name, DType::kBF16, dims, random_normal(1, name, count)};
}

struct NormWithGates {
  static constexpr int64_t kDim = 2048;
  DeviceTensor x = normal("x", {kTokens, kDim}), w = normal("w", {kDim}),
               wi = normal("wi", {kHeads, kDim}), wf = normal("wf", {kHeads, kDim}),
               bi = normal("bi", {kHeads}), bf = normal("bf", {kHeads});
  DeviceTensor y{"y", DType::kBF16, {kTokens, kDim}}, rstd{"rstd", DType::kF32, {kTokens}},
      i{"i", DType::kF32, {kTokens, kHeads}}, f{"f", DType::kF32, {kTokens, kHeads}};
  std::unique_ptr<Stream> stream;

  explicit NormWithGates(Backend& backend) {
    auto made = backend.make_stream();
    SWAX_CHECK(made.ok());
    stream = std::move(made).value();
  }
  void poison() {
    for (DeviceTensor* out : {&y, &rstd, &i, &f}) out->poison();
  }
  Status run(Backend& backend) const {
    RmsNormGatesArgs a;
    a.norm = {x.tensor(), w.tensor(), y.tensor(), rstd.tensor(), 1e-6F};
    a.gates = {y.tensor(),  wi.tensor(), wf.tensor(), bi.tensor(),
               bf.tensor(), i.tensor(),  f.tensor(),  15.0F};
    return backend.rms_norm_gates(*stream, a);
  }
  std::vector<std::vector<std::byte>> results() const {
    return {y.bytes(), rstd.bytes(), i.bytes(), f.bytes()};
  }
};

class CudaStreams : public testing::Test {
 protected:
  void SetUp() override {
    SWAX_NEED_DEVICE();
    auto opened = cuda::open_cuda_backend(0);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    backend = std::move(opened).value();
    one = std::make_unique<NormWithGates>(*backend);
    two = std::make_unique<NormWithGates>(*backend);
    sync_device();
  }
  // Both at once, many times; first one alone.
  void expect_equal_bits(const std::function<Status(NormWithGates&)>& run) {
    one->poison();
    sync_device();
    ASSERT_TRUE(run(*one).ok());
    sync_device();
    const auto alone = one->results();
    for (int round = 0; round < kRounds; ++round) {
      one->poison();
      two->poison();
      sync_device();
      for (int call = 0; call < kCallsARound; ++call) {
        ASSERT_TRUE(run(*one).ok());
        ASSERT_TRUE(run(*two).ok());
      }
      sync_device();
      EXPECT_TRUE(one->results() == alone) << "stream one, round " << round;
      EXPECT_TRUE(two->results() == alone) << "stream two, round " << round;
    }
  }
  std::unique_ptr<Backend> backend;
  std::unique_ptr<NormWithGates> one, two;
};

TEST_F(CudaStreams, DrawTheirWorkApart) {
  expect_equal_bits([&](NormWithGates& n) { return n.run(*backend); });
}

TEST_F(CudaStreams, KeepTheirGraphs) {
  std::map<const Stream*, std::unique_ptr<DeviceGraph>> graphs;
  for (NormWithGates* n : {one.get(), two.get()}) {
    ASSERT_TRUE(backend->begin_capture(*n->stream).ok());
    ASSERT_TRUE(n->run(*backend).ok());
    auto graph = backend->end_capture(*n->stream);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    graphs[n->stream.get()] = std::move(graph).value();
  }
  expect_equal_bits([&](NormWithGates& n) {
    return backend->launch_graph(*n.stream, *graphs.at(n.stream.get()));
  });
  const Status other = backend->launch_graph(*two->stream, *graphs.at(one->stream.get()));
  EXPECT_EQ(other.code(), Code::kInvalidArgument) << other.to_string();
}

}  // namespace
}  // namespace swax::test
