// Goal: sliding-window attention on the device equals float64. The simple f32 form keeps the bound
// of kernels/spec/swa.h, the simple bf16 form adds one half ulp of bf16 for each rounding on the
// way, and the form chosen for bf16 has at most twice the error of the simple one.
#include "kernels/cuda/swa.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/kernels/cuda_device.h"
#include "tests/reference/attention.h"
#include "tests/support/tensor_check.h"

namespace swax::test {
namespace {

using cuda::SwaForm;
using reference::Vec;

struct Case {
  int64_t tokens, heads, kv_heads, size, window;
  std::vector<int32_t> reset = {};
  double shift = 0.0;  // added to every logit, through element 0 of q and k
};

struct Inputs {
  std::vector<float> q, k, v, d_o;
  std::vector<int32_t> doc_start;
  float scale;
};

void set_first(std::vector<float>& x, int64_t size, double value) {
  for (size_t i = 0; i < x.size(); i += static_cast<size_t>(size)) {
    x[i] = bf16_round(static_cast<float>(value));
  }
}

Inputs inputs(const Case& c) {
  const int64_t q = c.tokens * c.heads * c.size;
  const int64_t kv = c.tokens * c.kv_heads * c.size;
  const Draw draw{.bf16 = true};
  Inputs in{random_normal(1, "q", q, draw),
            random_normal(1, "k", kv, draw),
            random_normal(1, "v", kv, draw),
            random_normal(1, "do", q, draw),
            c.reset.empty() ? std::vector<int32_t>{} : reference::first_tokens(c.reset),
            static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.size)))};
  if (c.shift != 0.0) {
    const double root = std::sqrt(std::abs(c.shift) * std::sqrt(static_cast<double>(c.size)));
    set_first(in.q, c.size, root);
    set_first(in.k, c.size, c.shift < 0.0 ? -root : root);
  }
  return in;
}

struct Results {
  std::vector<float> o, lse, dq, dk, dv;
};
const char* const kNames[] = {"o", "lse", "dq", "dk", "dv"};
const std::vector<float>& part(const Results& r, int i) {
  const std::vector<float>* const all[] = {&r.o, &r.lse, &r.dq, &r.dk, &r.dv};
  return *all[i];
}

// Device tensors of one case, filled; outputs poisoned.
struct Rig {
  Rig(const Case& c, const Inputs& in, DType dtype)
      : q("q", dtype, {c.tokens, c.heads, c.size}, in.q),
        k("k", dtype, {c.tokens, c.kv_heads, c.size}, in.k),
        v("v", dtype, {c.tokens, c.kv_heads, c.size}, in.v),
        d_o("do", dtype, {c.tokens, c.heads, c.size}, in.d_o),
        doc("doc_start", DType::kI32, {c.tokens}),
        o("o", dtype, {c.tokens, c.heads, c.size}),
        lse("lse", DType::kF32, {c.tokens, c.heads}),
        dq("dq", dtype, {c.tokens, c.heads, c.size}),
        dk("dk", dtype, {c.tokens, c.kv_heads, c.size}),
        dv("dv", dtype, {c.tokens, c.kv_heads, c.size}),
        scratch("scratch", DType::kF32, {swa_backward_scratch(c.tokens, c.heads)}) {
    Tensor borders;
    if (!in.doc_start.empty()) {
      doc.write_bytes(in.doc_start.data(), c.tokens * 4);
      borders = doc.tensor();
    }
    forward = {q.tensor(), k.tensor(),   v.tensor(), borders,
               o.tensor(), lse.tensor(), c.window,   in.scale};
    backward = {q.tensor(),       k.tensor(),   v.tensor(),  borders,     o.tensor(),
                lse.tensor(),     d_o.tensor(), dq.tensor(), dk.tensor(), dv.tensor(),
                scratch.tensor(), c.window,     in.scale};
  }
  void poison() {
    for (DeviceTensor* t : {&o, &lse, &dq, &dk, &dv, &scratch}) t->poison();
  }
  void run(SwaForm form) {
    const Status there = cuda::launch_swa(nullptr, forward, form);
    EXPECT_TRUE(there.ok()) << there.to_string();
    const Status back = cuda::launch_swa_backward(nullptr, backward, form);
    EXPECT_TRUE(back.ok()) << back.to_string();
    sync_device();
  }
  Results results() const {
    return {o.values(), lse.values(), dq.values(), dk.values(), dv.values()};
  }
  DeviceTensor q, k, v, d_o, doc, o, lse, dq, dk, dv, scratch;
  SwaArgs forward;
  SwaBackwardArgs backward;
};

Results run(const Case& c, const Inputs& in, DType dtype, SwaForm form) {
  Rig rig(c, in, dtype);
  rig.run(form);
  return rig.results();
}

struct Wants {
  Vec values[5];
};
Wants wants(const Case& c, const Inputs& in) {
  const reference::AttentionSizes s{c.tokens, c.heads, c.kv_heads, c.size, c.window};
  const Vec q = widen(in.q), k = widen(in.k), v = widen(in.v);
  auto out = reference::attention(s, q, k, v, c.reset);
  auto grad = reference::attention_backward(s, q, k, v, c.reset, widen(in.d_o));
  return {{std::move(out.o_THK), std::move(out.lse_TH), std::move(grad.dq_THK),
           std::move(grad.dk_THK), std::move(grad.dv_THK)}};
}

// A score is an exponent: its rounding counts absolutely, so the bound grows with it; a gradient
// also grows with the element of q or k that carries the shift, against others of order 1.
double condition(const Case& c, int i) {
  if (c.shift == 0.0) return 1.0;
  const double root = std::sqrt(std::abs(c.shift) * std::sqrt(static_cast<double>(c.size)));
  const bool gradient = i == 2 || i == 3;
  return (1.0 + std::abs(c.shift)) * (gradient ? 1.0 + root : 1.0);
}

double f32_bound(const Case& c, int i) {
  const int64_t sum = std::min(c.window, c.tokens) + c.size;
  return rounding_bound(sum, i < 2 ? 4 : 8) * condition(c, i);
}
// Roundings to bf16 on the way, each of at most 2^-8: o: P and o; dq, dk: o in delta, dS, the
// result; dv: P and the result; lse has none.
double bf16_bound(const Case& c, int i) {
  const double roundings[] = {2, 0, 3, 3, 2};
  const double root = std::sqrt(std::abs(c.shift) * std::sqrt(static_cast<double>(c.size)));
  const double carried = i == 2 || i == 3 ? 1.0 + root : 1.0;
  return f32_bound(c, i) + roundings[i] * carried / 256.0;
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " H " << c.heads << " G " << c.kv_heads
                                  << " E " << c.size << " window " << c.window << " shift "
                                  << c.shift << " borders " << !c.reset.empty());
  const Inputs in = inputs(c);
  const Wants want = wants(c, in);
  const Results f32 = run(c, in, DType::kF32, SwaForm::kSimple);
  const Results simple = run(c, in, DType::kBF16, SwaForm::kSimple);
  const Results chosen = run(c, in, DType::kBF16, SwaForm::kAuto);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(tensor_near(std::string("f32 ") + kNames[i], part(f32, i), want.values[i],
                            f32_bound(c, i)));
    EXPECT_TRUE(tensor_near(std::string("simple bf16 ") + kNames[i], part(simple, i),
                            want.values[i], bf16_bound(c, i)));
    // lse is f32 in every form: its own bound, not the luck of the simple form on few elements.
    const double error = rel_error(std::span<const float>(part(simple, i)), want.values[i]);
    const double bound = i == 1 ? f32_bound(c, i) : tuned_bound(error);
    EXPECT_TRUE(tensor_near(std::string("chosen bf16 ") + kNames[i], part(chosen, i),
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
  const Case c{.tokens = 130, .heads = 2, .kv_heads = 2, .size = 128, .window = 1};
  const Results got = run(c, inputs(c), DType::kBF16, SwaForm::kAuto);
  for (const float x : got.dq) ASSERT_EQ(x, 0.0F);
  for (const float x : got.dk) ASSERT_EQ(x, 0.0F);
}

TEST(CudaSwa, GivesTheSameBitsAgain) {
  SWAX_NEED_DEVICE();
  Case c{.tokens = 1000, .heads = 4, .kv_heads = 2, .size = 128, .window = 300};
  c.reset = doc_starts(1000, {333, 640});
  const Inputs in = inputs(c);
  for (const SwaForm form : {SwaForm::kSimple, SwaForm::kAuto}) {
    Rig rig(c, in, DType::kBF16);
    rig.run(form);
    const Results first = rig.results();
    for (int rerun = 0; rerun < 20; ++rerun) {
      rig.poison();
      rig.run(form);
      const Results again = rig.results();
      for (int i = 0; i < 5; ++i) {
        ASSERT_TRUE(same_bits(kNames[i], part(again, i), part(first, i))) << "rerun " << rerun;
      }
    }
  }
}

TEST(CudaSwa, PassesNaNOn) {
  SWAX_NEED_DEVICE();
  const Case c{.tokens = 150, .heads = 1, .kv_heads = 1, .size = 128, .window = 20};
  for (int which = 0; which < 3; ++which) {
    Inputs in = inputs(c);
    std::vector<float>& x = which == 0 ? in.q : which == 1 ? in.k : in.v;
    const auto at = static_cast<size_t>(70 * c.size + 3);
    x[at] = std::nanf("");
    for (const SwaForm form : {SwaForm::kSimple, SwaForm::kAuto}) {
      const Results got = run(c, in, DType::kBF16, form);
      EXPECT_TRUE(std::isnan(got.o[at])) << which;
      EXPECT_TRUE(std::isnan(got.dq[at])) << which;
    }
  }
}

TEST(CudaSwa, TakesViewsOfOneFusedBuffer) {
  SWAX_NEED_DEVICE();
  const Case c{.tokens = 150, .heads = 4, .kv_heads = 2, .size = 128, .window = 40};
  const Inputs in = inputs(c);
  const Results want = run(c, in, DType::kBF16, SwaForm::kAuto);
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
  Rig rig(c, in, DType::kBF16);
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

// Float64 values of single rows of a long sequence without borders.
struct RowStats {
  std::vector<double> p;   // of keys first .. t
  std::vector<double> dp;  // do . v
  int64_t first;
  double lse;
  double delta;
};

double dot_at(const std::vector<float>& a, int64_t i, const std::vector<float>& b, int64_t j,
              int64_t count) {
  const float* x = a.data() + i;
  const float* y = b.data() + j;
  double sum = 0.0;
  for (int64_t e = 0; e < count; ++e) sum += static_cast<double>(x[e]) * static_cast<double>(y[e]);
  return sum;
}

RowStats row_stats(const Case& c, const Inputs& in, int64_t t, int64_t head) {
  const int64_t kv_head = head / (c.heads / c.kv_heads);
  const int64_t query = (t * c.heads + head) * c.size;
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.size));
  RowStats r{
      .p = {}, .dp = {}, .first = std::max<int64_t>(0, t - c.window + 1), .lse = 0.0, .delta = 0.0};
  for (int64_t j = r.first; j <= t; ++j) {
    const int64_t key = (j * c.kv_heads + kv_head) * c.size;
    r.p.push_back(scale * dot_at(in.q, query, in.k, key, c.size));
    r.dp.push_back(dot_at(in.d_o, query, in.v, key, c.size));
  }
  const double top = *std::max_element(r.p.begin(), r.p.end());
  double sum = 0.0;
  for (const double x : r.p) sum += std::exp(x - top);
  r.lse = top + std::log(sum);
  for (size_t j = 0; j < r.p.size(); ++j) {
    r.p[j] = std::exp(r.p[j] - r.lse);
    r.delta += r.p[j] * r.dp[j];
  }
  return r;
}

// Rows of the results: o, lse, dq of two queries, dk and dv of two keys, as in `part`.
struct Samples {
  std::vector<int64_t> queries;
  int64_t key;  // and the next
};

Wants sampled_wants(const Case& c, const Inputs& in, const Samples& at) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.size));
  Wants w;
  w.values[3].assign(static_cast<size_t>(2 * c.size), 0.0);
  w.values[4] = w.values[3];
  for (const int64_t t : at.queries) {
    const RowStats r = row_stats(c, in, t, 0);
    Vec o(static_cast<size_t>(c.size), 0.0), dq(o);
    for (size_t j = 0; j < r.p.size(); ++j) {
      const auto key =
          static_cast<size_t>((r.first + static_cast<int64_t>(j)) * c.kv_heads * c.size);
      for (size_t e = 0; e < o.size(); ++e) {
        o[e] += r.p[j] * static_cast<double>(in.v[key + e]);
        dq[e] += r.p[j] * (r.dp[j] - r.delta) * scale * static_cast<double>(in.k[key + e]);
      }
    }
    w.values[0].insert(w.values[0].end(), o.begin(), o.end());
    w.values[1].push_back(r.lse);
    w.values[2].insert(w.values[2].end(), dq.begin(), dq.end());
  }
  for (int64_t t = at.key; t < std::min(c.tokens, at.key + 1 + c.window); ++t) {
    const RowStats r = row_stats(c, in, t, 0);
    for (int64_t j = std::max(at.key, r.first); j <= std::min(at.key + 1, t); ++j) {
      const auto seen = static_cast<size_t>(j - r.first);
      const double ds = r.p[seen] * (r.dp[seen] - r.delta) * scale;
      const auto query = static_cast<size_t>(t * c.heads * c.size);
      for (size_t e = 0; e < static_cast<size_t>(c.size); ++e) {
        const size_t to = static_cast<size_t>((j - at.key) * c.size) + e;
        w.values[3][to] += ds * static_cast<double>(in.q[query + e]);
        w.values[4][to] += r.p[seen] * static_cast<double>(in.d_o[query + e]);
      }
    }
  }
  return w;
}

Results sampled(const Case& c, const Results& all, const Samples& at) {
  Results out;
  const auto take = [&](const std::vector<float>& from, int64_t begin, int64_t count,
                        std::vector<float>& to) {
    to.insert(to.end(), from.begin() + begin, from.begin() + begin + count);
  };
  for (const int64_t t : at.queries) {
    take(all.o, t * c.heads * c.size, c.size, out.o);
    take(all.lse, t * c.heads, 1, out.lse);
    take(all.dq, t * c.heads * c.size, c.size, out.dq);
  }
  for (int64_t j = at.key; j < at.key + 2; ++j) {
    take(all.dk, j * c.kv_heads * c.size, c.size, out.dk);
    take(all.dv, j * c.kv_heads * c.size, c.size, out.dv);
  }
  return out;
}

// One query head for each key head, so that head 0 stands alone; the second head moves the rows.
TEST(CudaSwa, EqualsReferenceInALongSequence) {
  SWAX_NEED_DEVICE();
  const Samples early{.queries = {0, 127, 2047, 2048, 8191, 16383}, .key = 9000};
  const Samples late{.queries = {1, 6400, 16382}, .key = 16250};
  for (const auto& [window, at] : {std::pair{int64_t{128}, early}, std::pair{int64_t{2048}, early},
                                   std::pair{int64_t{16384}, late}}) {
    const Case c{.tokens = 16384, .heads = 2, .kv_heads = 2, .size = 128, .window = window};
    SCOPED_TRACE(testing::Message() << "window " << window);
    const Inputs in = inputs(c);
    const Wants want = sampled_wants(c, in, at);
    const Results simple = sampled(c, run(c, in, DType::kBF16, SwaForm::kSimple), at);
    const Results chosen = sampled(c, run(c, in, DType::kBF16, SwaForm::kAuto), at);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(tensor_near(std::string("simple bf16 ") + kNames[i], part(simple, i),
                              want.values[i], bf16_bound(c, i)));
      const double error = rel_error(std::span<const float>(part(simple, i)), want.values[i]);
      const double bound = i == 1 ? f32_bound(c, i) : tuned_bound(error);
      EXPECT_TRUE(tensor_near(std::string("chosen bf16 ") + kNames[i], part(chosen, i),
                              want.values[i], bound));
    }
  }
}

TEST(CudaSwaDecode, EqualsTheSequenceFormRowByRow) {
  SWAX_NEED_DEVICE();
  const Case c{.tokens = 90, .heads = 4, .kv_heads = 2, .size = 64, .window = 30};
  const int64_t ring = 37;
  const Inputs in = inputs(c);
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
