// Goal: sliding-window attention on the device equals float64. The simple f32 form keeps the bound
// of kernels/spec/swa.h, the simple bf16 form adds one half ulp of bf16 for each rounding on the
// way, and the form chosen for bf16 has at most twice the error of the simple one.
#include <algorithm>
#include <cmath>

#include "tests/kernels/cuda_swa_case.h"
#include "tests/reference/attention.h"
#include "tests/support/tensor_check.h"

namespace swax::test {
namespace {

using cuda::SwaForm;
using reference::Vec;

struct Wants {
  Vec values[5];
};
Wants wants(const SwaCase& c, const SwaInputs& in) {
  const reference::AttentionSizes s{c.tokens, c.heads, c.kv_heads, c.size, c.window};
  const Vec q = widen(in.q), k = widen(in.k), v = widen(in.v);
  auto out = reference::attention(s, q, k, v, c.reset);
  auto grad = reference::attention_backward(s, q, k, v, c.reset, widen(in.d_o));
  if (c.turned) {
    grad.dq_THK = reference::rope_inverse(swa_rope_sizes(c, c.heads), grad.dq_THK);
    grad.dk_THK = reference::rope_inverse(swa_rope_sizes(c, c.kv_heads), grad.dk_THK);
  }
  return {{std::move(out.o_THK), std::move(out.lse_TH), std::move(grad.dq_THK),
           std::move(grad.dk_THK), std::move(grad.dv_THK)}};
}

void check(const SwaCase& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " H " << c.heads << " G " << c.kv_heads
                                  << " E " << c.size << " window " << c.window << " shift "
                                  << c.shift << " borders " << !c.reset.empty());
  const SwaInputs in = swa_inputs(c);
  const Wants want = wants(c, in);
  const SwaResults f32 = swa_run(c, in, DType::kF32, SwaForm::kSimple);
  const SwaResults simple = swa_run(c, in, DType::kBF16, SwaForm::kSimple);
  const SwaResults chosen = swa_run(c, in, DType::kBF16, SwaForm::kAuto);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(tensor_near(std::string("f32 ") + kSwaNames[i], swa_part(f32, i), want.values[i],
                            swa_f32_bound(c, i)));
    EXPECT_TRUE(tensor_near(std::string("simple bf16 ") + kSwaNames[i], swa_part(simple, i),
                            want.values[i], swa_bf16_bound(c, i)));
    const double error = rel_error(std::span<const float>(swa_part(simple, i)), want.values[i]);
    const double bound = swa_chosen_bound(c, i, error, want.values[i].size());
    EXPECT_TRUE(tensor_near(std::string("chosen bf16 ") + kSwaNames[i], swa_part(chosen, i),
                            want.values[i], bound));
  }
}

TEST(CudaSwa, EqualsReferenceForEveryKindOfWindow) {
  SWAX_NEED_DEVICE();
  for (const int64_t window : {1, 64, 127, 128, 129, 319, 320, 2048}) {
    check({.tokens = 320, .heads = 2, .kv_heads = 2, .size = 128, .window = window});
  }
}

TEST(CudaSwa, EqualsReferenceForTokensAroundTheTiles) {
  SWAX_NEED_DEVICE();
  for (const int64_t tokens : {1, 63, 64, 65, 127, 128, 129, 192, 255, 257, 448}) {
    check({.tokens = tokens, .heads = 1, .kv_heads = 1, .size = 128, .window = 100});
  }
  check({.tokens = 447, .heads = 1, .kv_heads = 1, .size = 128, .window = 4096});
}

TEST(CudaSwa, EqualsReferenceForGroupsAndOtherHeadSizes) {
  SWAX_NEED_DEVICE();
  check({.tokens = 200, .heads = 4, .kv_heads = 1, .size = 128, .window = 70});
  check({.tokens = 200, .heads = 4, .kv_heads = 2, .size = 128, .window = 1000});
  check({.tokens = 100, .heads = 8, .kv_heads = 2, .size = 6, .window = 24});
  check({.tokens = 100, .heads = 3, .kv_heads = 3, .size = 64, .window = 100});
}

TEST(CudaSwa, TurnsItsGradientsBack) {
  SWAX_NEED_DEVICE();
  for (const int64_t tokens : {1, 65, 129, 320}) {
    check(
        {.tokens = tokens, .heads = 4, .kv_heads = 2, .size = 128, .window = 100, .turned = true});
  }
  check({.tokens = 70, .heads = 2, .kv_heads = 1, .size = 6, .window = 24, .turned = true});
}

// Small enough for a race checker.
TEST(CudaSwa, BlocksTakeSeveralPieces) {
  SWAX_NEED_DEVICE();
  check({.tokens = 130, .heads = 140, .kv_heads = 140, .size = 128, .window = 70});
}

TEST(CudaSwa, StopsAtDocumentBorders) {
  SWAX_NEED_DEVICE();
  const std::vector<std::vector<int32_t>> borders = {
      doc_starts(320, {0, 64, 128, 256}),     // at tile edges
      doc_starts(320, {63, 65, 127, 129}),    // beside them
      doc_starts(320, {200, 201, 202, 203}),  // documents of one token
      doc_starts(320, {319}),                 // the last token alone
      std::vector<int32_t>(320, 1),           // every token is a document
  };
  for (const auto& reset : borders) {
    check({.tokens = 320, .heads = 2, .kv_heads = 1, .size = 128, .window = 90, .reset = reset});
    check({.tokens = 320, .heads = 1, .kv_heads = 1, .size = 128, .window = 999, .reset = reset});
  }
}

TEST(CudaSwa, HoldsForShiftedLogits) {
  SWAX_NEED_DEVICE();
  for (const double shift : {-120.0, 120.0}) {
    check({.tokens = 192, .heads = 1, .kv_heads = 1, .size = 128, .window = 150, .shift = shift});
    check({.tokens = 130, .heads = 1, .kv_heads = 1, .size = 128, .window = 999, .shift = shift});
  }
}

TEST(CudaSwa, LoneQueriesHaveNoScoreGradient) {
  SWAX_NEED_DEVICE();
  const SwaCase c{.tokens = 130, .heads = 2, .kv_heads = 2, .size = 128, .window = 1};
  const SwaResults got = swa_run(c, swa_inputs(c), DType::kBF16, SwaForm::kAuto);
  for (const float x : got.dq) ASSERT_EQ(x, 0.0F);
  for (const float x : got.dk) ASSERT_EQ(x, 0.0F);
}

TEST(CudaSwa, GivesTheSameBitsAgain) {
  SWAX_NEED_DEVICE();
  SwaCase c{.tokens = 1000, .heads = 4, .kv_heads = 2, .size = 128, .window = 300};
  c.reset = doc_starts(1000, {333, 640});
  const SwaInputs in = swa_inputs(c);
  for (const SwaForm form : {SwaForm::kSimple, SwaForm::kAuto}) {
    SwaRig rig(c, in, DType::kBF16);
    rig.run(form);
    const SwaResults first = rig.results();
    for (int rerun = 0; rerun < 20; ++rerun) {
      rig.poison();
      rig.run(form);
      const SwaResults again = rig.results();
      for (int i = 0; i < 5; ++i) {
        ASSERT_TRUE(same_bits(kSwaNames[i], swa_part(again, i), swa_part(first, i)))
            << "rerun " << rerun;
      }
    }
  }
}

// dS kept in memory, for all key heads at once, one, or two of three, or formed twice. The scratch
// is NaN before each run, so a tile that is read and was not written shows.
void check_forms(SwaCase c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " H " << c.heads << " G " << c.kv_heads
                                  << " window " << c.window << " turned " << c.turned);
  const SwaInputs in = swa_inputs(c);
  c.kept_heads = 0;
  const SwaResults want = swa_run(c, in, DType::kBF16, SwaForm::kAuto);
  for (const int64_t kept : {int64_t{-1}, int64_t{1}, int64_t{2}}) {
    if (kept > c.kv_heads) continue;
    c.kept_heads = kept;
    const SwaResults got = swa_run(c, in, DType::kBF16, SwaForm::kAuto);
    for (int i = 2; i < 5; ++i) {
      ASSERT_TRUE(same_bits(kSwaNames[i], swa_part(got, i), swa_part(want, i))) << kept;
    }
  }
}

TEST(CudaSwa, GivesTheSameBitsWhereverDsIsKept) {
  SWAX_NEED_DEVICE();
  for (const int64_t window : {1, 2, 63, 64, 65, 127, 128, 129, 193, 511, 512, 513, 2048}) {
    check_forms({.tokens = 576, .heads = 3, .kv_heads = 3, .size = 128, .window = window});
  }
  for (const int64_t tokens : {1, 63, 64, 65, 191, 193, 255, 256, 257, 320, 511, 513, 704}) {
    check_forms({.tokens = tokens, .heads = 4, .kv_heads = 2, .size = 128, .window = 200});
  }
  // More pieces than blocks.
  check_forms({.tokens = 4160, .heads = 12, .kv_heads = 3, .size = 128, .window = 450});
  check_forms(
      {.tokens = 700, .heads = 6, .kv_heads = 3, .size = 128, .window = 90, .turned = true});
}

TEST(CudaSwa, GivesTheSameBitsWhereverDsIsKeptAtDocumentBorders) {
  SWAX_NEED_DEVICE();
  const std::vector<std::vector<int32_t>> borders = {
      doc_starts(800, {0, 64, 128, 256, 512}),     // at tile edges
      doc_starts(800, {63, 65, 127, 129, 511}),    // beside them
      doc_starts(800, {200, 201, 202, 203, 460}),  // documents of one token
      doc_starts(800, {799}),                      // the last token alone
      std::vector<int32_t>(800, 1),                // every token is a document
  };
  for (const auto& reset : borders) {
    for (const int64_t window : {90, 300, 512}) {
      check_forms({.tokens = 800,
                   .heads = 6,
                   .kv_heads = 3,
                   .size = 128,
                   .window = window,
                   .reset = reset});
    }
  }
}

TEST(CudaSwa, PassesNaNOn) {
  SWAX_NEED_DEVICE();
  const SwaCase c{.tokens = 150, .heads = 1, .kv_heads = 1, .size = 128, .window = 20};
  for (int which = 0; which < 3; ++which) {
    SwaInputs in = swa_inputs(c);
    std::vector<float>& x = which == 0 ? in.q : which == 1 ? in.k : in.v;
    const auto at = static_cast<size_t>(70 * c.size + 3);
    x[at] = std::nanf("");
    for (const SwaForm form : {SwaForm::kSimple, SwaForm::kAuto}) {
      const SwaResults got = swa_run(c, in, DType::kBF16, form);
      EXPECT_TRUE(std::isnan(got.o[at])) << which;
      EXPECT_TRUE(std::isnan(got.dq[at])) << which;
    }
  }
}

TEST(CudaSwa, TakesViewsOfOneFusedBuffer) {
  SWAX_NEED_DEVICE();
  const SwaCase c{.tokens = 150, .heads = 4, .kv_heads = 2, .size = 128, .window = 40};
  const SwaInputs in = swa_inputs(c);
  const SwaResults want = swa_run(c, in, DType::kBF16, SwaForm::kAuto);
  const int64_t heads = c.heads + 2 * c.kv_heads;
  const int64_t stride = heads * c.size;
  std::vector<float> fused(static_cast<size_t>(c.tokens * stride));
  const auto place = [&](const std::vector<float>& x, int64_t head, int64_t count) {
    for (int64_t t = 0; t < c.tokens; ++t) {
      std::copy_n(x.data() + t * count * c.size, count * c.size,
                  fused.data() + t * stride + head * c.size);
    }
  };
  place(in.q, 0, c.heads);
  place(in.k, c.heads, c.kv_heads);
  place(in.v, c.heads + c.kv_heads, c.kv_heads);
  DeviceTensor values("qkv", DType::kBF16, {c.tokens, heads, c.size}, fused);
  DeviceTensor grads("dqkv", DType::kBF16, {c.tokens, heads, c.size});
  const auto columns = [&](const DeviceTensor& x, int64_t head, int64_t count) {
    Tensor t = x.tensor();
    t.data = static_cast<std::byte*>(t.data) + head * c.size * dtype_bytes(t.dtype);
    t.dims[1] = count;
    return t;
  };
  SwaRig rig(c, in, DType::kBF16);
  rig.forward.q_THE = rig.backward.q_THE = columns(values, 0, c.heads);
  rig.forward.k_TGE = rig.backward.k_TGE = columns(values, c.heads, c.kv_heads);
  rig.forward.v_TGE = rig.backward.v_TGE = columns(values, c.heads + c.kv_heads, c.kv_heads);
  rig.backward.dq_THE = columns(grads, 0, c.heads);
  rig.backward.dk_TGE = columns(grads, c.heads, c.kv_heads);
  rig.backward.dv_TGE = columns(grads, c.heads + c.kv_heads, c.kv_heads);
  rig.run(SwaForm::kAuto);
  EXPECT_TRUE(same_bits("o", rig.o.values(), want.o));
  const std::vector<float> got = grads.values();
  const auto same = [&](const std::vector<float>& x, int64_t head, int64_t count) {
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t e = 0; e < count * c.size; ++e) {
        ASSERT_EQ(got[static_cast<size_t>(t * stride + head * c.size + e)],
                  x[static_cast<size_t>(t * count * c.size + e)]);
      }
    }
  };
  same(want.dq, 0, c.heads);
  same(want.dk, c.heads, c.kv_heads);
  same(want.dv, c.heads + c.kv_heads, c.kv_heads);
}

TEST(CudaSwaDecode, EqualsTheSequenceFormRowByRow) {
  SWAX_NEED_DEVICE();
  const SwaCase c{.tokens = 90, .heads = 4, .kv_heads = 2, .size = 64, .window = 30};
  const int64_t ring = 37;
  const SwaInputs in = swa_inputs(c);
  const auto want = reference::attention({c.tokens, c.heads, c.kv_heads, c.size, c.window},
                                         widen(in.q), widen(in.k), widen(in.v), {});
  const int64_t kv_row = c.kv_heads * c.size;
  const int64_t q_row = c.heads * c.size;
  std::vector<float> ring_k(static_cast<size_t>(ring * kv_row)), ring_v(ring_k.size()), rows;
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::copy_n(in.k.data() + t * kv_row, kv_row, ring_k.data() + t % ring * kv_row);
    std::copy_n(in.v.data() + t * kv_row, kv_row, ring_v.data() + t % ring * kv_row);
    DeviceTensor q("q", DType::kF32, {c.heads, c.size},
                   {in.q.data() + t * q_row, in.q.data() + (t + 1) * q_row});
    DeviceTensor k("ring k", DType::kF32, {ring, c.kv_heads, c.size}, ring_k);
    DeviceTensor v("ring v", DType::kF32, {ring, c.kv_heads, c.size}, ring_v);
    DeviceTensor o("o", DType::kF32, {c.heads, c.size});
    const SwaDecodeArgs a{q.tensor(), k.tensor(), v.tensor(), o.tensor(), t, 0, c.window, in.scale};
    ASSERT_TRUE(cuda::launch_swa_decode(nullptr, a).ok());
    const std::vector<float> row = o.values();
    rows.insert(rows.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(tensor_near("decode", rows, want.o_THK, rounding_bound(c.window + c.size, 4)));
}

}  // namespace
}  // namespace swax::test
