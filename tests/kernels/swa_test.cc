// Goal: sliding-window attention, forward, backward and decode, equals the float64 reference inside
// the bound of kernels/spec/swa.h for windows and borders at every awkward place.
#include <cmath>

#include "tests/kernels/op_check.h"
#include "tests/reference/attention.h"

namespace swax::test {
namespace {

using reference::Vec;

struct Case {
  int64_t tokens, heads, kv_heads, size, window;
  std::vector<int32_t> reset_T = {};
  double spread = 1.0;  // std of q and k
  bool turned = false;  // dq and dk leave turned back
};

struct Inputs {
  std::vector<float> q, k, v, d_o;
  std::vector<int32_t> doc_start;
};

Inputs inputs(const Case& c) {
  const int64_t q = c.tokens * c.heads * c.size;
  const int64_t kv = c.tokens * c.kv_heads * c.size;
  const Draw wide{.std = c.spread};
  return {random_normal(1, "q", q, wide), random_normal(1, "k", kv, wide),
          random_normal(1, "v", kv), random_normal(1, "do", q),
          c.reset_T.empty() ? std::vector<int32_t>{} : reference::first_tokens(c.reset_T)};
}

reference::AttentionSizes sizes(const Case& c) {
  return {c.tokens, c.heads, c.kv_heads, c.size, c.window};
}
float scale_of(const Case& c) { return static_cast<float>(1.0 / std::sqrt(double(c.size))); }

struct Wants {
  std::vector<Want> forward;
  std::vector<Want> backward;
};

Wants wants(const Case& c, const Inputs& in, reference::Canary canary = reference::Canary::kNone) {
  const int64_t sum = std::min(c.window, c.tokens) + c.size;
  const Vec q = widen(in.q);
  const Vec k = widen(in.k);
  const Vec v = widen(in.v);
  const auto out = reference::attention(sizes(c), q, k, v, c.reset_T, canary);
  const auto grad =
      reference::attention_backward(sizes(c), q, k, v, c.reset_T, widen(in.d_o), canary);
  return {{{"o", out.o_THK, rounding_bound(sum, 4)}, {"lse", out.lse_TH, rounding_bound(sum, 4)}},
          {{"dq", grad.dq_THK, rounding_bound(sum, 8)},
           {"dk", grad.dk_THK, rounding_bound(sum, 8)},
           {"dv", grad.dv_THK, rounding_bound(sum, 8)}}};
}

struct Results {
  Outputs forward;
  Outputs backward;
};

Results run(const Case& c, const Inputs& in, Rig& rig) {
  const int64_t q = c.tokens * c.heads * c.size;
  const int64_t kv = c.tokens * c.kv_heads * c.size;
  const auto q_dims = {c.tokens, c.heads, c.size};
  const auto kv_dims = {c.tokens, c.kv_heads, c.size};
  GuardedBuffer<float> o("o", q), lse("lse", c.tokens * c.heads);
  SwaArgs a;
  a.q_THE = f32(in.q, q_dims);
  a.k_TGE = f32(in.k, kv_dims);
  a.v_TGE = f32(in.v, kv_dims);
  a.doc_start_T = i32(in.doc_start, {c.tokens});
  a.o_THE = f32(o, q_dims);
  a.lse_TH = f32(lse, {c.tokens, c.heads});
  a.window = c.window;
  a.scale = scale_of(c);
  EXPECT_TRUE(rig.backend->swa(*rig.stream, a).ok());
  GuardedBuffer<float> dq("dq", q), dk("dk", kv), dv("dv", kv);
  GuardedBuffer<float> scratch("scratch", swa_backward_scratch(c.tokens, c.heads));
  SwaBackwardArgs b;
  b.q_THE = a.q_THE;
  b.k_TGE = a.k_TGE;
  b.v_TGE = a.v_TGE;
  b.doc_start_T = a.doc_start_T;
  b.o_THE = a.o_THE;
  b.lse_TH = a.lse_TH;
  b.do_THE = f32(in.d_o, q_dims);
  b.dq_THE = f32(dq, q_dims);
  b.dk_TGE = f32(dk, kv_dims);
  b.dv_TGE = f32(dv, kv_dims);
  b.scratch = f32(scratch, {scratch.size()});
  b.window = c.window;
  b.scale = a.scale;
  std::vector<float> cos(static_cast<size_t>(c.tokens * c.size / 2)), sin(cos.size());
  if (c.turned) {
    b.cos_TP = f32(cos, {c.tokens, c.size / 2});
    b.sin_TP = f32(sin, {c.tokens, c.size / 2});
    for (int64_t t = 0; t < c.tokens; ++t) rope_table_row(t, 10000.0, b.cos_TP, b.sin_TP, t);
  }
  EXPECT_TRUE(rig.backend->swa_backward(*rig.stream, b).ok());
  return {{{"o", o.values()}, {"lse", lse.values()}},
          {{"dq", dq.values()}, {"dk", dk.values()}, {"dv", dv.values()}}};
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " H " << c.heads << " G " << c.kv_heads
                                  << " E " << c.size << " window " << c.window);
  const Inputs in = inputs(c);
  const Wants want = wants(c, in);
  check_op([&](Rig& rig) { return run(c, in, rig).forward; }, want.forward);
  check_op([&](Rig& rig) { return run(c, in, rig).backward; }, want.backward);
}

TEST(Swa, EqualsReferenceForEveryKindOfWindow) {
  for (const int64_t window : {1, 7, 8, 16, 31, 32, 33, 64, 65, 76, 77, 200}) {
    check({.tokens = 77, .heads = 2, .kv_heads = 2, .size = 16, .window = window});
  }
}

TEST(Swa, EqualsReferenceForTokensAroundTheTiles) {
  for (const int64_t tokens : {1, 2, 31, 32, 33, 63, 64, 65, 97}) {
    check({.tokens = tokens, .heads = 1, .kv_heads = 1, .size = 8, .window = 40});
  }
}

TEST(Swa, EqualsReferenceForGroupsAndOddHeadSizes) {
  check({.tokens = 70, .heads = 4, .kv_heads = 1, .size = 32, .window = 24});
  check({.tokens = 70, .heads = 8, .kv_heads = 2, .size = 6, .window = 24});
  check({.tokens = 70, .heads = 3, .kv_heads = 3, .size = 13, .window = 100});
  check({.tokens = 40, .heads = 2, .kv_heads = 1, .size = 128, .window = 16});
}

// The bits of the op of its own: a trainer may leave either to the other.
TEST(Swa, TurnsItsGradientsBackAsRopeDoes) {
  Case c{.tokens = 70, .heads = 4, .kv_heads = 2, .size = 16, .window = 24};
  const Inputs in = inputs(c);
  Rig rig = open_rig(2);
  Outputs want = run(c, in, rig).backward;
  c.turned = true;
  const Outputs got = run(c, in, rig).backward;
  const int64_t pairs = c.size / 2;
  std::vector<float> cos(static_cast<size_t>(c.tokens * pairs)), sin(cos.size());
  const Tensor cos_TP = f32(cos, {c.tokens, pairs}), sin_TP = f32(sin, {c.tokens, pairs});
  for (int64_t t = 0; t < c.tokens; ++t) rope_table_row(t, 10000.0, cos_TP, sin_TP, t);
  for (size_t i = 0; i < 2; ++i) {
    const int64_t heads = i == 0 ? c.heads : c.kv_heads;
    const Tensor x_THE = f32(want[i].values, {c.tokens, heads, c.size});
    ASSERT_TRUE(rig.backend->rope(*rig.stream, {x_THE, cos_TP, sin_TP, true}).ok());
  }
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(same_bits(want[i].name, got[i].values, want[i].values));
}

TEST(Swa, StopsAtDocumentBorders) {
  const Case base{.tokens = 100, .heads = 2, .kv_heads = 1, .size = 16, .window = 48};
  const std::vector<std::vector<int32_t>> borders = {
      doc_starts(100, {0, 32, 64, 96}),   // at tile edges
      doc_starts(100, {31, 33, 63, 65}),  // beside them
      doc_starts(100, {50, 51, 52, 53}),  // documents of one token
      doc_starts(100, {99}),              // the last token alone
      std::vector<int32_t>(100, 1),       // every token is a document
  };
  for (const auto& reset : borders) {
    Case c = base;
    c.reset_T = reset;
    check(c);
    c.window = 1000;
    check(c);
  }
}

// A view of columns [col, col + heads * size) of a buffer with rows of `stride` elements.
Tensor columns(std::vector<float>& fused, int64_t stride, int64_t col, int64_t heads,
               int64_t size) {
  const int64_t tokens = static_cast<int64_t>(fused.size()) / stride;
  Tensor t = Tensor::of(fused.data() + col, DType::kF32, {tokens, heads, size});
  t.row_stride = stride;
  return t;
}

TEST(Swa, TakesViewsOfOneFusedBuffer) {
  const Case c{.tokens = 70, .heads = 4, .kv_heads = 2, .size = 8, .window = 20};
  const Inputs in = inputs(c);
  Rig rig = open_rig();
  const Results want = run(c, in, rig);
  const int64_t stride = (c.heads + 2 * c.kv_heads) * c.size;
  const int64_t k_col = c.heads * c.size;
  const int64_t v_col = k_col + c.kv_heads * c.size;
  std::vector<float> fused(static_cast<size_t>(c.tokens * stride)), grads(fused.size());
  SwaBackwardArgs b;
  b.q_THE = columns(fused, stride, 0, c.heads, c.size);
  b.k_TGE = columns(fused, stride, k_col, c.kv_heads, c.size);
  b.v_TGE = columns(fused, stride, v_col, c.kv_heads, c.size);
  b.dq_THE = columns(grads, stride, 0, c.heads, c.size);
  b.dk_TGE = columns(grads, stride, k_col, c.kv_heads, c.size);
  b.dv_TGE = columns(grads, stride, v_col, c.kv_heads, c.size);
  const auto q_dims = {c.tokens, c.heads, c.size};
  const auto kv_dims = {c.tokens, c.kv_heads, c.size};
  Backend& backend = *rig.backend;
  ASSERT_TRUE(backend.copy(*rig.stream, b.q_THE, f32(in.q, q_dims)).ok());
  ASSERT_TRUE(backend.copy(*rig.stream, b.k_TGE, f32(in.k, kv_dims)).ok());
  ASSERT_TRUE(backend.copy(*rig.stream, b.v_TGE, f32(in.v, kv_dims)).ok());
  std::vector<float> o(in.q.size()), lse(want.forward[1].values.size()), scratch(lse.size());
  std::vector<float> dk(in.k.size());
  b.o_THE = f32(o, q_dims);
  b.lse_TH = f32(lse, {c.tokens, c.heads});
  b.do_THE = f32(in.d_o, q_dims);
  b.scratch = f32(scratch, {c.tokens, c.heads});
  b.window = c.window;
  b.scale = scale_of(c);
  SwaArgs a{b.q_THE, b.k_TGE, b.v_TGE, {}, b.o_THE, b.lse_TH, c.window, b.scale};
  ASSERT_TRUE(backend.swa(*rig.stream, a).ok());
  EXPECT_TRUE(same_bits("o", o, want.forward[0].values));
  ASSERT_TRUE(backend.swa_backward(*rig.stream, b).ok());
  ASSERT_TRUE(backend.copy(*rig.stream, f32(dk, kv_dims), b.dk_TGE).ok());
  EXPECT_TRUE(same_bits("dk", dk, want.backward[1].values));
}

// Against a count of the tiles that hold a pair.
TEST(Swa, RoomForDsIsThatOfItsTiles) {
  constexpr int64_t kTile = kSwaKeptTile;
  for (const int64_t tokens : {1, 63, 64, 65, 200, 448}) {
    for (const int64_t window : {1, 2, 63, 64, 65, 66, 128, 129, 130, 200, 448, 1000}) {
      int64_t tiles = 0, most = 0;
      for (int64_t query = 0; query < tokens; query += kTile) {
        const int64_t first = std::max<int64_t>(0, query - window + 1) / kTile;
        tiles += query / kTile - first + 1;
        most = std::max(most, query / kTile - first + 1);
      }
      EXPECT_EQ(swa_kept_tiles(tokens, window), tiles) << tokens << " " << window;
      EXPECT_EQ(swa_kept_seen(tokens, window), most) << tokens << " " << window;
    }
  }
  const auto scratch = [](DType dtype, int64_t tokens, int64_t size) {
    return swa_backward_scratch(Tensor::of(nullptr, dtype, {tokens, 3, size}));
  };
  EXPECT_EQ(scratch(DType::kF32, 200, 128), 600);
  EXPECT_EQ(scratch(DType::kBF16, 200, 64), 600);
  EXPECT_EQ(scratch(DType::kBF16, 200, 128), 600 + 3 * 10 * kTile * kTile / 2);
  EXPECT_EQ(scratch(DType::kBF16, 1 << 18, 128), (3 << 18) + kSwaKeptMax / 4);
}

TEST(Swa, ChecksNoticePlantedBugs) {
  Case c{.tokens = 60, .heads = 2, .kv_heads = 1, .size = 16, .window = 12};
  c.reset_T = doc_starts(60, {20, 41});
  const Inputs in = inputs(c);
  Rig rig = open_rig();
  const Results got = run(c, in, rig);
  for (const auto canary : {reference::Canary::kWindowOffByOne, reference::Canary::kNoResetMask}) {
    const Wants bad = wants(c, in, canary);
    EXPECT_GT(worst_ratio(got.forward, bad.forward), 10.0);
    EXPECT_GT(worst_ratio(got.backward, bad.backward), 10.0);
  }
}

TEST(Swa, PassesNaNOn) {
  const Case c{.tokens = 40, .heads = 1, .kv_heads = 1, .size = 8, .window = 4};
  Rig rig = open_rig();
  for (int which = 0; which < 3; ++which) {
    Inputs in = inputs(c);
    std::vector<float>& x = which == 0 ? in.q : which == 1 ? in.k : in.v;
    x[static_cast<size_t>(20 * c.size + 3)] = std::nanf("");
    const Results got = run(c, in, rig);
    EXPECT_TRUE(std::isnan(got.forward[0].values[static_cast<size_t>(20 * c.size + 3)]));
    EXPECT_TRUE(std::isnan(got.backward[0].values[static_cast<size_t>(20 * c.size + 3)]));
  }
}

// Decode of every position against the rows of the whole-sequence form.
void check_decode(int64_t window, int64_t ring, const std::vector<int32_t>& reset) {
  const Case c{
      .tokens = 90, .heads = 4, .kv_heads = 2, .size = 16, .window = window, .reset_T = reset};
  const Inputs in = inputs(c);
  const auto out = reference::attention(sizes(c), widen(in.q), widen(in.k), widen(in.v), reset);
  Rig rig = open_rig(2);
  const int64_t kv_row = c.kv_heads * c.size;
  const int64_t q_row = c.heads * c.size;
  GuardedBuffer<float> k("ring k", ring * kv_row), v("ring v", ring * kv_row), o("o", q_row);
  std::vector<float> rows;
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::copy_n(in.k.data() + t * kv_row, kv_row, k.data() + t % ring * kv_row);
    std::copy_n(in.v.data() + t * kv_row, kv_row, v.data() + t % ring * kv_row);
    SwaDecodeArgs a;
    a.q_HE =
        Tensor::of(const_cast<float*>(in.q.data()) + t * q_row, DType::kF32, {c.heads, c.size});
    a.k_RGE = f32(k, {ring, c.kv_heads, c.size});
    a.v_RGE = f32(v, {ring, c.kv_heads, c.size});
    a.o_HE = f32(o, {c.heads, c.size});
    a.position = t;
    a.doc_start = reset.empty() ? 0 : in.doc_start[static_cast<size_t>(t)];
    a.window = window;
    a.scale = scale_of(c);
    ASSERT_TRUE(rig.backend->swa_decode(*rig.stream, a).ok());
    const std::vector<float> row = o.values();
    rows.insert(rows.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(tensor_near("decode", rows, out.o_THK,
                          rounding_bound(std::min(window, c.tokens) + c.size, 4)));
}

TEST(SwaDecode, EqualsTheSequenceFormRowByRow) {
  check_decode(1, 1, {});
  check_decode(8, 8, {});
  check_decode(8, 11, doc_starts(90, {30, 31, 60}));
  check_decode(70, 80, {});
  check_decode(90, 90, doc_starts(90, {89}));
}

}  // namespace
}  // namespace swax::test
