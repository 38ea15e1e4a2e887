// Goal: regions as graphs change when calls run, never which. Method: a CPU backend that can
// capture (it keeps the calls) under a GraphBackend; results are compared with the calls made at
// once, and what ran how is counted.
#include "kernels/graph_backend.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/kernels/op_check.h"

namespace swax::test {
namespace {

class KeptCalls final : public DeviceGraph {
 public:
  std::vector<std::function<Status()>> calls;
};

// Captures adds, copies and fills, with the arguments that they have then.
class CapturingBackend final : public BackendWrapper {
 public:
  explicit CapturingBackend(Backend& inner) : BackendWrapper(inner) {}
  bool can_capture() const override { return able; }
  Status begin_capture(Stream&) override {
    kept_ = std::make_unique<KeptCalls>();
    return ok();
  }
  Result<std::unique_ptr<DeviceGraph>> end_capture(Stream&) override {
    return std::unique_ptr<DeviceGraph>(std::move(kept_));
  }
  Status launch_graph(Stream&, DeviceGraph& graph) override {
    for (const auto& call : static_cast<KeptCalls&>(graph).calls) SWAX_TRY(call());
    return ok();
  }
  Status add(Stream& s, const AddArgs& a) override {
    return run([this, &s, a] { return BackendWrapper::add(s, a); });
  }
  Status copy(Stream& s, Tensor to, Tensor from) override {
    return run([this, &s, to, from] { return BackendWrapper::copy(s, to, from); });
  }
  Status fill(Stream& s, const FillArgs& a) override {
    return run([this, &s, a] { return BackendWrapper::fill(s, a); });
  }
  Event record(Stream& s) override {
    ++records;
    return BackendWrapper::record(s);
  }
  bool able = true;
  int records = 0;

 private:
  Status run(std::function<Status()> call) {
    if (!kept_) return call();
    kept_->calls.push_back(std::move(call));
    return ok();
  }
  std::unique_ptr<KeptCalls> kept_;
};

class GraphBackendTest : public testing::Test {
 protected:
  // x := value, then twice x := x + y.
  Status region(Backend& b, float value, int64_t elements = 4) {
    const Tensor tx = f32(x_, {4}).rows(0, elements), ty = f32(y_, {4}).rows(0, elements);
    b.begin_region(*rig_.stream);
    SWAX_TRY(b.fill(*rig_.stream, {.x = tx, .value = value}));
    for (int i = 0; i < 2; ++i) SWAX_TRY(b.add(*rig_.stream, {.a = tx, .b = ty, .out = tx}));
    return b.end_region(*rig_.stream);
  }
  void expect_x(float first, float last) {
    EXPECT_EQ(x_.front(), first);
    EXPECT_EQ(x_.back(), last);
  }
  Rig rig_ = open_rig(1);
  CapturingBackend inner_{*rig_.backend};
  GraphBackend graphs_{inner_};
  std::vector<float> x_ = std::vector<float>(4, 0.0F), y_ = std::vector<float>(4, 10.0F);
};

TEST_F(GraphBackendTest, RunsThenCapturesThenLaunches) {
  for (int step = 1; step <= 4; ++step) {
    y_.assign(4, static_cast<float>(step));  // values are no arguments
    ASSERT_TRUE(region(graphs_, 1.0F).ok());
    expect_x(1.0F + 2.0F * static_cast<float>(step), 1.0F + 2.0F * static_cast<float>(step));
  }
  EXPECT_EQ(graphs_.counts().direct, 1);
  EXPECT_EQ(graphs_.counts().captured, 1);
  EXPECT_EQ(graphs_.counts().launched, 3);
}

// A number, a shape, an address or a call that differs is another region.
TEST_F(GraphBackendTest, OtherArgumentsAreAnotherRegion) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(region(graphs_, 1.0F).ok());
  ASSERT_TRUE(region(graphs_, 2.0F).ok());
  expect_x(22.0F, 22.0F);
  ASSERT_TRUE(region(graphs_, -2.0F, 2).ok());
  expect_x(18.0F, 22.0F);
  std::vector<float> other(4, 100.0F);
  other.swap(y_);  // y_ lies elsewhere now
  ASSERT_TRUE(region(graphs_, 1.0F).ok());
  expect_x(201.0F, 201.0F);
  EXPECT_EQ(graphs_.counts().direct, 4);
  EXPECT_EQ(graphs_.counts().captured, 1);
  other.swap(y_);
  ASSERT_TRUE(region(graphs_, 1.0F).ok());
  expect_x(21.0F, 21.0F);
  EXPECT_EQ(graphs_.counts().launched, 3);
}

TEST_F(GraphBackendTest, CallsOutsideRunAtOnceAndInOrder) {
  const Tensor tx = f32(x_, {4}), ty = f32(y_, {4});
  ASSERT_TRUE(graphs_.fill(*rig_.stream, {.x = tx, .value = 3.0F}).ok());
  expect_x(3.0F, 3.0F);
  // Inside, an event stands behind what was called before it.
  graphs_.begin_region(*rig_.stream);
  ASSERT_TRUE(graphs_.add(*rig_.stream, {.a = tx, .b = ty, .out = tx}).ok());
  expect_x(3.0F, 3.0F);
  graphs_.record(*rig_.stream);
  EXPECT_EQ(inner_.records, 1);
  expect_x(13.0F, 13.0F);
  ASSERT_TRUE(graphs_.copy(*rig_.stream, tx, ty).ok());
  ASSERT_TRUE(graphs_.end_region(*rig_.stream).ok());
  expect_x(10.0F, 10.0F);
}

// A graph uses the memory of the stream that it was captured on: a stream made later is another
// one, also where it lies at the same address.
TEST_F(GraphBackendTest, AnotherStreamIsAnotherRegion) {
  const Tensor tx = f32(x_, {4}), ty = f32(y_, {4});
  for (int streams = 1; streams <= 3; ++streams) {
    auto stream = graphs_.make_stream();
    ASSERT_TRUE(stream.ok());
    for (int i = 0; i < 3; ++i) {
      graphs_.begin_region(**stream);
      ASSERT_TRUE(graphs_.add(**stream, {.a = tx, .b = ty, .out = tx}).ok());
      ASSERT_TRUE(graphs_.end_region(**stream).ok());
    }
    EXPECT_EQ(graphs_.counts().direct, streams);
    EXPECT_EQ(graphs_.counts().captured, streams);
  }
}

// A writer of checkpoints waits for its own stream while a region is open elsewhere.
TEST_F(GraphBackendTest, AnotherThreadsSyncLeavesTheRegionAlone) {
  auto other = graphs_.make_stream();
  ASSERT_TRUE(other.ok());
  const Tensor tx = f32(x_, {4}), ty = f32(y_, {4});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(graphs_.fill(*rig_.stream, {.x = tx, .value = 0.0F}).ok());
    graphs_.begin_region(*rig_.stream);
    ASSERT_TRUE(graphs_.add(*rig_.stream, {.a = tx, .b = ty, .out = tx}).ok());
    std::thread writer([&] { EXPECT_TRUE(graphs_.sync(**other).ok()); });
    writer.join();
    expect_x(0.0F, 0.0F);  // still put off
    ASSERT_TRUE(graphs_.add(*rig_.stream, {.a = tx, .b = ty, .out = tx}).ok());
    ASSERT_TRUE(graphs_.end_region(*rig_.stream).ok());
    expect_x(20.0F, 20.0F);
  }
  EXPECT_EQ(graphs_.counts().launched, 2);
}

TEST_F(GraphBackendTest, ErrorsShowAtTheEndOfTheRegion) {
  const Tensor tx = f32(x_, {4}), short_y = f32(y_, {4}).rows(0, 2);
  graphs_.begin_region(*rig_.stream);
  EXPECT_TRUE(graphs_.add(*rig_.stream, {.a = tx, .b = short_y, .out = tx}).ok());
  EXPECT_EQ(graphs_.end_region(*rig_.stream).code(), Code::kInvalidArgument);
  graphs_.begin_region(*rig_.stream);
  EXPECT_TRUE(graphs_.add(*rig_.stream, {.a = tx, .b = short_y, .out = tx}).ok());
  graphs_.record(*rig_.stream);  // returns no status
  EXPECT_EQ(graphs_.end_region(*rig_.stream).code(), Code::kInvalidArgument);
}

TEST_F(GraphBackendTest, BoundedAndOptional) {
  GraphBackend one(inner_, 1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(region(one, 1.0F).ok());
    ASSERT_TRUE(region(one, 2.0F).ok());
    expect_x(22.0F, 22.0F);
  }
  EXPECT_EQ(one.counts().captured, 1);
  EXPECT_EQ(one.counts().direct, 4);
  inner_.able = false;
  ASSERT_TRUE(region(one, 1.0F).ok());
  expect_x(21.0F, 21.0F);
  EXPECT_EQ(one.counts().direct, 5);
}

// Every member of every op counts.
template <typename Args>
void expect_distinct(const Args& base, const std::vector<Args>& others) {
  std::vector<uint64_t> want;
  append_words(Call(base), want);
  for (size_t i = 0; i < others.size(); ++i) {
    std::vector<uint64_t> got;
    append_words(Call(others[i]), got);
    EXPECT_NE(got, want) << "member " << i;
  }
}

TEST(CallWords, NameEveryMember) {
  std::vector<float> memory(64);
  const Tensor t = Tensor::of(memory.data(), DType::kF32, {2, 4});
  const Tensor u = Tensor::of(memory.data(), DType::kF32, {4, 2});
  Tensor strided = t;
  strided.row_stride = 8;
  Tensor typed = t;
  typed.dtype = DType::kI32;
  const Tensor moved = Tensor::of(memory.data() + 1, DType::kF32, {2, 4});
  expect_distinct<FillArgs>({.x = t, .value = 0.0F}, {{.x = u, .value = 0.0F},
                                                      {.x = strided, .value = 0.0F},
                                                      {.x = typed, .value = 0.0F},
                                                      {.x = moved, .value = 0.0F},
                                                      {.x = {}, .value = 0.0F},
                                                      {.x = t, .value = -0.0F}});
  SwaArgs swa;
  swa.q_THE = t;
  swa.window = 8;
  swa.scale = 0.5F;
  std::vector<SwaArgs> others(8, swa);
  others[0].q_THE = u;
  others[1].k_TGE = t;
  others[2].v_TGE = t;
  others[3].doc_start_T = t;
  others[4].o_THE = t;
  others[5].lse_TH = t;
  others[6].window = 9;
  others[7].scale = 0.25F;
  expect_distinct(swa, others);
  std::vector<uint64_t> add, swiglu;
  append_words(Call(AddArgs{.a = t, .b = t, .out = t}), add);
  append_words(Call(SwigluArgs{.a_TF = t, .b_TF = t, .s_TF = t}), swiglu);
  EXPECT_NE(add, swiglu);
}

}  // namespace
}  // namespace swax::test
