// Goal: element-wise ops, digest, copies, embedding and memory of the CPU backend.
#include <cmath>
#include <cstring>

#include "proto/base/hash.h"
#include "tests/kernels/op_check.h"
#include "tests/reference/mlp.h"

namespace swax::test {
namespace {

constexpr int64_t kLong = (1 << 16) * 2 + 13;  // three pieces, the last one short

TEST(Basic, FillWritesEveryElement) {
  Rig rig = open_rig(2);
  GuardedBuffer<float> x("x", kLong);
  EXPECT_TRUE(rig.backend->fill(*rig.stream, {f32(x, {kLong}), 2.5F}).ok());
  for (int64_t i = 0; i < kLong; ++i) ASSERT_EQ(x.data()[i], 2.5F);
}

TEST(Basic, AddIsOneRoundingAndMayAlias) {
  const std::vector<float> a = random_normal(4, "a", kLong);
  const std::vector<float> b = random_normal(4, "b", kLong);
  Rig rig = open_rig(2);
  GuardedBuffer<float> out("out", std::span<const float>(a));
  EXPECT_TRUE(
      rig.backend->add(*rig.stream, {f32(out, {kLong}), f32(b, {kLong}), f32(out, {kLong})}).ok());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(out.data()[i], a[i] + b[i]);
  std::vector<float> x(24);
  const Tensor all = f32(x, {24});
  EXPECT_TRUE(
      rig.backend->add(*rig.stream, {all.rows(0, 8), all.rows(8, 8), all.rows(16, 8)}).ok());
  const Status moved =
      rig.backend->add(*rig.stream, {all.rows(0, 8), all.rows(16, 8), all.rows(1, 8)});
  EXPECT_EQ(moved.message(), "add: out shares memory with a: must be a itself or apart from it");
  const Status behind =
      rig.backend->add(*rig.stream, {all.rows(0, 8), all.rows(16, 8), all.rows(15, 8)});
  EXPECT_EQ(behind.message(), "add: out shares memory with b: must be b itself or apart from it");
  // Of another shape, the same elements in place; a row alone has whatever stride it says.
  const Tensor table = f32(x, {3, 8});
  EXPECT_TRUE(rig.backend->add(*rig.stream, {all, all, table}).ok());
  Tensor row = table.rows(0, 1);
  row.row_stride = 100;
  EXPECT_TRUE(rig.backend->add(*rig.stream, {table.rows(0, 1), table.rows(1, 1), row}).ok());
  EXPECT_TRUE(rig.backend->add(*rig.stream, {row, table.rows(1, 1), table.rows(2, 1)}).ok());
}

TEST(Basic, CastRoundsToNearestEven) {
  std::vector<float> x = random_normal(4, "x", 999);
  x[0] = std::nanf("");
  x[1] = INFINITY;
  x[2] = 1.0F + std::ldexp(1.0F, -8);         // tie: down to even
  x[3] = 1.0F + 3.0F * std::ldexp(1.0F, -8);  // tie: up to even
  std::vector<uint16_t> half(x.size());
  std::vector<float> back(x.size());
  Rig rig = open_rig();
  const Tensor middle = Tensor::of(half.data(), DType::kBF16, {999});
  EXPECT_TRUE(rig.backend->cast(*rig.stream, {f32(x, {999}), middle}).ok());
  EXPECT_TRUE(rig.backend->cast(*rig.stream, {middle, f32(back, {999})}).ok());
  EXPECT_TRUE(std::isnan(back[0]));
  EXPECT_EQ(back[1], INFINITY);
  EXPECT_EQ(back[2], 1.0F);
  EXPECT_EQ(back[3], 1.0F + std::ldexp(1.0F, -6));
  for (size_t i = 4; i < x.size(); ++i) ASSERT_EQ(back[i], bf16_round(x[i]));
}

TEST(Basic, DigestIsTheSumOfTheMixersAndSplits) {
  const std::vector<float> x = random_normal(4, "x", kLong);
  uint64_t want[2] = {5, 7};
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &x[i], sizeof(bits));
    for (int k = 0; k < 2; ++k) want[k] += digest_mix(k, 42, 1000 + i, bits);
  }
  for (const int64_t cut : {int64_t{1}, int64_t{70000}, kLong - 1}) {
    Rig rig = open_rig(3);
    GuardedBuffer<int64_t> sums("sums", 2);
    sums.data()[0] = 5;
    sums.data()[1] = 7;
    const Tensor s = Tensor::of(sums.data(), DType::kI64, {2});
    const Tensor all = f32(x, {kLong});
    const Tensor second = all.rows(cut, kLong - cut);
    EXPECT_TRUE(
        rig.backend->digest(*rig.stream, {second, 42, 1000 + static_cast<uint64_t>(cut), s}).ok());
    EXPECT_TRUE(rig.backend->digest(*rig.stream, {all.rows(0, cut), 42, 1000, s}).ok());
    EXPECT_EQ(static_cast<uint64_t>(sums.data()[0]), want[0]);
    EXPECT_EQ(static_cast<uint64_t>(sums.data()[1]), want[1]);
  }
}

TEST(Basic, CopyKeepsStrides) {
  const std::vector<float> x = random_normal(4, "x", 60);
  GuardedBuffer<float> y("y", 3 * 10);
  Tensor from = f32(x, {3, 20});
  from.dims[1] = 7;  // the first seven of each row
  Tensor to = f32(y, {3, 10});
  to.dims[1] = 7;
  Rig rig = open_rig();
  EXPECT_TRUE(rig.backend->copy(*rig.stream, to, from).ok());
  for (size_t r = 0; r < 3; ++r) {
    for (size_t i = 0; i < 10; ++i) {
      if (i < 7) {
        EXPECT_EQ(y.data()[r * 10 + i], x[r * 20 + i]);
      } else {
        EXPECT_TRUE(std::isnan(y.data()[r * 10 + i]));
      }
    }
  }
  to.dims[1] = 6;
  EXPECT_EQ(rig.backend->copy(*rig.stream, to, from).code(), Code::kInvalidArgument);
}

TEST(Basic, BuffersAreAlignedAndTooLargeOnesAreRefused) {
  Rig rig = open_rig();
  for (const int64_t bytes : {0, 1, 255, 4097}) {
    Result<Buffer> b = rig.backend->allocate(bytes, MemoryKind::kDevice);
    ASSERT_TRUE(b.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 256, 0U);
    EXPECT_EQ(b->bytes(), bytes);
  }
  EXPECT_EQ(rig.backend->allocate(-1, MemoryKind::kDevice).status().code(), Code::kInvalidArgument);
}

TEST(Embedding, CopiesRowsAndAddsInTokenOrder) {
  const int64_t vocab = 37;
  const int64_t dim = 19;
  const int64_t tokens = 300;
  const std::vector<int32_t> token = random_ints(4, "tokens", tokens, vocab - 1);  // one is unused
  const std::vector<float> w = random_normal(4, "w", vocab * dim);
  const std::vector<float> dy = random_normal(4, "dy", tokens * dim);
  const RunOp run = [&](Rig& rig) -> Outputs {
    GuardedBuffer<float> y("y", tokens * dim), dw("dw", vocab * dim);
    EXPECT_TRUE(rig.backend
                    ->embedding(*rig.stream,
                                {i32(token, {tokens}), f32(w, {vocab, dim}), f32(y, {tokens, dim})})
                    .ok());
    EXPECT_TRUE(rig.backend
                    ->embedding_backward(*rig.stream, {i32(token, {tokens}), f32(dy, {tokens, dim}),
                                                       f32(dw, {vocab, dim})})
                    .ok());
    return {{"y", y.values()}, {"dw", dw.values()}};
  };
  const reference::Vec w64 = widen(w);
  // Longest sum: a token that stands everywhere.
  check_op(run, {{"y", reference::embedding(w64, token, dim), 0.0},
                 {"dw", reference::embedding_backward(widen(dy), token, vocab, dim),
                  rounding_bound(tokens, 1)}});
  Rig rig = open_rig();
  const Outputs got = run(rig);
  for (int64_t i = (vocab - 1) * dim; i < vocab * dim; ++i) {
    EXPECT_EQ(got[1].values[static_cast<size_t>(i)], 0.0F);
  }
}

TEST(Embedding, RefusesTokensOutsideTheVocabulary) {
  Rig rig = open_rig();
  std::vector<float> w(12), y(6);
  for (const int32_t bad : {-1, 4}) {
    const std::vector<int32_t> token = {0, bad};
    const Status s =
        rig.backend->embedding(*rig.stream, {i32(token, {2}), f32(w, {4, 3}), f32(y, {2, 3})});
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find("must be 0..3"), std::string::npos) << s.message();
  }
}

}  // namespace
}  // namespace swax::test
