// Goal: products, loss, gates, row sums and the norm tree on the device at the sizes of the models,
// in f32 and bf16, equal the float64 reference or the stated order.
#include <algorithm>
#include <cmath>

#include "tests/kernels/values.h"
#include "tests/reference/linear.h"
#include "tests/reference/loss.h"

namespace swax::test {
namespace {

using reference::Vec;

// Tensor cores add 16 products at a time and cut off what lies below the last place of the running
// sum: one unit (2^-23) a step at most.
double tensor_core_bound(int64_t depth) {
  return std::ldexp(static_cast<double>(depth / 16 + 2), -23);
}

struct Product {
  int64_t m, n, k;
  bool trans_a, trans_b, accumulate;
  DType out;
  bool apart = false;  // what is accumulated to is an addend elsewhere
};

Vec transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
  Vec out;
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      out.push_back(static_cast<double>(x[static_cast<size_t>(r * cols + c)]));
    }
  }
  return out;
}

void check_product(const Product& p) {
  SCOPED_TRACE(testing::Message() << p.m << " x " << p.n << " x " << p.k << " ta " << p.trans_a
                                  << " tb " << p.trans_b << " acc " << p.accumulate << " out "
                                  << dtype_name(p.out));
  const std::vector<float> a = exact_normal("a", p.m * p.k);
  const std::vector<float> b = exact_normal("b", p.n * p.k);
  const std::vector<float> c = exact_normal("c", p.m * p.n);
  const Vec a_MK = p.trans_a ? transposed(a, p.k, p.m) : widen(a);
  const Vec b_NK = p.trans_b ? widen(b) : transposed(b, p.k, p.n);
  Vec want = reference::linear(a_MK, b_NK, p.k);
  if (p.accumulate) reference::add_to(want, widen(c));
  const RunOp run = [&](Rig& rig) -> Outputs {
    Values va(DType::kBF16, a), vb(DType::kBF16, b);
    const bool in_place = p.accumulate && !p.apart;
    Values vc = in_place ? Values(p.out, c) : Values(p.out, p.m * p.n), addend(p.out, c);
    GemmArgs g;
    g.a = p.trans_a ? va.view({p.k, p.m}) : va.view({p.m, p.k});
    g.b = p.trans_b ? vb.view({p.n, p.k}) : vb.view({p.k, p.n});
    g.c = vc.view({p.m, p.n});
    g.trans_a = p.trans_a;
    g.trans_b = p.trans_b;
    g.accumulate = in_place;
    if (p.accumulate && p.apart) g.addend = addend.view({p.m, p.n});
    const Status status = rig.backend->gemm(*rig.stream, g);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return {{"c", vc.floats()}};
  };
  check_op(run, {{"c", want, value_bound(p.out, tensor_core_bound(p.k))}});
}

TEST(CudaBf16, Gemm) {
  for (const DType out : {DType::kBF16, DType::kF32}) {
    for (const bool accumulate : {false, true}) {
      check_product({256, 192, 512, false, true, accumulate, out});   // y = x W^T
      check_product({256, 320, 192, false, false, accumulate, out});  // dx = dy W
      check_product({128, 160, 1024, true, false, accumulate, out});  // dW = dy^T x
      check_product({37, 29, 45, true, true, accumulate, out});       // odd: the plain kernel
      check_product({1, 64, 256, false, true, accumulate, out});
    }
    check_product({256, 192, 512, false, true, true, out, true});  // onto the residual stream
    check_product({37, 29, 45, true, true, true, out, true});
  }
}

// Planted logits are the last of as many groups of eight.
void check_loss(DType type, int64_t tokens, int64_t vocab, float cap, Draw draw = {.std = 3.0},
                const std::vector<float>& planted = {}) {
  SCOPED_TRACE(testing::Message() << dtype_name(type) << " V " << vocab << " cap " << cap
                                  << " mean " << draw.mean << " std " << draw.std);
  std::vector<float> logits = exact_normal("u", tokens * vocab, draw);
  for (size_t i = 0; i < planted.size(); ++i) logits[8 * i + 7] = planted[i];
  std::vector<int32_t> targets = random_ints(23, "targets", tokens, static_cast<int32_t>(vocab));
  // Long rows go to 132 blocks in turn: a block has rows with and without a target, also two
  // without in a row.
  for (size_t t = 2; t < targets.size(); t += 37) targets[t] = -1;
  for (const size_t t : {7U, 139U})
    if (t < targets.size()) targets[t] = -1;
  StepScalars scalars;
  scalars.inv_targets = 1.0F / static_cast<float>(reference::count_targets(targets));
  reference::LossOptions options;
  options.cap = static_cast<double>(cap);
  const auto want = reference::cross_entropy(widen(logits), targets, options);
  double largest = 0.0;
  for (const float x : logits) largest = std::max(largest, std::abs(static_cast<double>(x)));
  largest = std::min(largest, static_cast<double>(cap));
  const double exponent = cap > 0.0F ? std::ldexp(largest, -23) : 0.0;
  const double f32_bound = rounding_bound(vocab, 4) + exponent;
  double loss = 0.0;
  std::vector<double> token_loss;
  const auto run = [&](Rig& rig, bool gradient) -> Outputs {
    Values u(type, logits);
    GuardedBuffer<double> sum("loss_sum", 1), each("token_loss", tokens);
    sum.data()[0] = 0.0;
    CrossEntropyArgs a;
    a.logits_TV = u.view({tokens, vocab});
    a.targets_T = i32(targets, {tokens});
    a.loss_sum = f64(sum, {1});
    a.token_loss_T = f64(each, {tokens});
    a.scalars = &scalars;
    a.cap = cap;
    a.write_gradient = gradient;
    const Status status = rig.backend->cross_entropy(*rig.stream, a);
    EXPECT_TRUE(status.ok()) << status.to_string();
    loss = sum.data()[0];
    token_loss = each.values();
    return {{"du", u.floats()}};
  };
  check_op([&](Rig& rig) { return run(rig, true); },
           {{"du", want.dlogits_TV, value_bound(type, f32_bound)}});
  const double with = loss;
  Rig rig = open_rig();
  EXPECT_TRUE(same_bits("logits kept", run(rig, false)[0].values, logits));
  EXPECT_EQ(loss, with);
  EXPECT_NEAR(loss, want.loss * static_cast<double>(want.count),
              f32_bound * (std::abs(want.loss) * static_cast<double>(want.count) + 1.0));
  double sum = 0.0;
  double magnitudes = 0.0;
  for (const double x : token_loss) {
    sum += x;
    magnitudes += std::abs(x);
  }
  // Any order: at most T roundings, here and there.
  EXPECT_NEAR(loss, sum, std::ldexp(static_cast<double>(tokens), -52) * magnitudes);
}

TEST(CudaBf16, CrossEntropy) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const float cap : {0.0F, 30.0F}) {
      check_loss(type, 6, 50304, cap);  // in registers (bf16)
      check_loss(type, 4, 57352, cap);  // beyond them
      check_loss(type, 5, 32000, cap);
      check_loss(type, 9, 8192, cap);
      check_loss(type, 9, 1000, cap);
      check_loss(type, 9, 1001, cap);
      check_loss(type, 16900, 9, cap);  // several losses of a thread of the sum
    }
  }
}

TEST(CudaBf16, CrossEntropyOfLongRows) {
  // Logits inside and outside the range of the polynomial, caps that need the maximum, logits far
  // from zero, and more rows than blocks.
  for (const float cap : {0.5F, 30.0F, 40.0F, 41.0F}) {
    check_loss(DType::kBF16, 5, 8200, cap, {.std = static_cast<double>(cap) / 2.0});
    check_loss(DType::kBF16, 5, 8200, cap, {.mean = 2.0 * static_cast<double>(cap)});
  }
  for (const double mean : {-120.0, 120.0}) {
    check_loss(DType::kBF16, 5, 8200, 0.0F, {.mean = mean, .std = 3.0});
  }
  check_loss(DType::kBF16, 5, 8200, 0.0F, {.std = 60.0});
  // Up to eight rows a block.
  for (const float cap : {0.0F, 30.0F}) check_loss(DType::kBF16, 929, 8200, cap);
  // No, one and all threads with a thirteenth vector.
  for (const int64_t vocab : {49152, 49160, 53248}) {
    for (const float cap : {0.0F, 30.0F}) check_loss(DType::kBF16, 3, vocab, cap);
  }
  // At the end of the polynomial's range and behind it, and where e^-2x has no f32.
  check_loss(DType::kBF16, 5, 8200, 30.0F, {.std = 3.0},
             {15.0F, -15.0F, 15.0625F, -15.0625F, 300.0F, -300.0F, 0x1p15F, -0x1p15F, 0x1p127F,
              -0x1p127F});
}

TEST(CudaBf16, TargetsBeyondTheVocabularyShowInTheLoss) {
  Rig rig = open_rig();
  std::vector<float> logits(8, 0.0F);
  const std::vector<int32_t> targets = {0, 4};
  GuardedBuffer<double> sum("sum", 1);
  sum.data()[0] = 0.0;
  CrossEntropyArgs a;
  a.logits_TV = f32(logits, {2, 4});
  a.targets_T = i32(targets, {2});
  a.loss_sum = f64(sum, {1});
  EXPECT_TRUE(rig.backend->cross_entropy(*rig.stream, a).ok());
  EXPECT_TRUE(std::isnan(sum.data()[0]));
}

void check_gates(DType type, DType weight_type, int64_t tokens, int64_t dim, int64_t heads) {
  SCOPED_TRACE(testing::Message() << dtype_name(type) << " w " << dtype_name(weight_type) << " T "
                                  << tokens << " D " << dim << " N " << heads);
  const Draw small{.std = 1.0 / std::sqrt(static_cast<double>(dim))};
  const std::vector<float> x = exact_normal("x", tokens * dim);
  const std::vector<float> wi = exact_normal("wi", heads * dim, small);
  const std::vector<float> wf = exact_normal("wf", heads * dim, small);
  const std::vector<float> bi = exact_normal("bi", heads);
  const std::vector<float> bf = exact_normal("bf", heads, {.mean = 4.5});
  const std::vector<float> di = exact_normal("di", tokens * heads);
  const std::vector<float> df = exact_normal("df", tokens * heads);
  const std::vector<float> dx0 = exact_normal("dx", tokens * dim);
  std::vector<Want> wants;
  Vec dx = widen(dx0);
  const auto one = [&](const char* name, const std::vector<float>& w, const std::vector<float>& b,
                       const std::vector<float>& d) {
    const Vec z = reference::add_bias(reference::linear(widen(x), widen(w), dim), widen(b));
    const auto grad = reference::linear_backward(widen(x), widen(w), widen(d), dim);
    reference::add_to(dx, grad.dx_TI);
    const double over_tokens = rounding_bound(tokens + dim, 3);
    wants.push_back({name, z, rounding_bound(dim, 3)});
    wants.push_back({std::string("dw") + name, grad.dw_OI, over_tokens});
    wants.push_back(
        {std::string("db") + name, reference::sum_over_tokens(widen(d), heads), over_tokens});
  };
  one("i", wi, bi, di);
  one("f", wf, bf, df);
  wants.push_back({"dx", dx, value_bound(type, rounding_bound(dim, 3))});
  const RunOp run = [&](Rig& rig) -> Outputs {
    const auto rows = {tokens, heads};
    const auto weights = {heads, dim};
    Values vx(type, x), vwi(weight_type, wi), vwf(weight_type, wf), vbi(weight_type, bi),
        vbf(weight_type, bf), vdx(type, dx0);
    Values i(DType::kF32, tokens * heads), f(DType::kF32, tokens * heads);
    Values vdi(DType::kF32, di), vdf(DType::kF32, df);
    Values dwi(DType::kF32, heads * dim), dwf(DType::kF32, heads * dim), dbi(DType::kF32, heads),
        dbf(DType::kF32, heads);
    MlstmGatesArgs a{
        vx.view({tokens, dim}), vwi.view(weights), vwf.view(weights), vbi.view({heads}),
        vbf.view({heads}),      i.view(rows),      f.view(rows),      0.0F};
    EXPECT_TRUE(rig.backend->mlstm_gates(*rig.stream, a).ok());
    MlstmGatesBackwardArgs b;
    b.x_TD = a.x_TD;
    b.wi_ND = a.wi_ND;
    b.wf_ND = a.wf_ND;
    b.i_TN = a.i_TN;
    b.f_TN = a.f_TN;
    b.di_TN = vdi.view(rows);
    b.df_TN = vdf.view(rows);
    b.dx_TD = vdx.view({tokens, dim});
    b.dwi_ND = dwi.view(weights);
    b.dwf_ND = dwf.view(weights);
    b.dbi_N = dbi.view({heads});
    b.dbf_N = dbf.view({heads});
    const Status status = rig.backend->mlstm_gates_backward(*rig.stream, b);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return {{"i", i.floats()},     {"f", f.floats()},     {"dx", vdx.floats()},
            {"dwi", dwi.floats()}, {"dwf", dwf.floats()}, {"dbi", dbi.floats()},
            {"dbf", dbf.floats()}};
  };
  check_op(run, wants);
}

TEST(CudaBf16, Gates) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    check_gates(type, type, 130, 2048, 4);
    check_gates(type, DType::kF32, 70, 4096, 8);
    check_gates(type, type, 33, 100, 3);
    check_gates(type, DType::kBF16, 5, 264, 5);
    check_gates(type, type, 300, 512, 5);
    check_gates(type, type, 40, 96, 10);
    check_gates(type, type, 20, 64, 17);
  }
}

// Rows of every segment against the stated order.
void check_row_sums(const std::vector<RowSegment>& segments, int64_t elements, int64_t rows) {
  const std::vector<float> x = exact_normal("x", elements);
  Rig rig = open_rig();
  GuardedBuffer<double> sums("sums", rows);
  EXPECT_TRUE(
      rig.backend->row_sumsq(*rig.stream, {f32(x, {elements}), segments, f64(sums, {rows})}).ok());
  for (const RowSegment& s : segments) {
    for (int64_t r = 0; r < s.rows; ++r) {
      double p[8] = {};
      for (int64_t e = 0; e < s.row_elements; ++e) {
        const double v =
            static_cast<double>(x[static_cast<size_t>(s.begin + r * s.row_elements + e)]);
        p[e % 8] += v * v;
      }
      ASSERT_EQ(sums.data()[s.first_row + r],
                ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])));
    }
  }
}

TEST(CudaBf16, RowSumsOfManySegmentsHaveTheStatedOrder) {
  // More segments than one launch takes, with rows of many lengths, aligned and not.
  std::vector<RowSegment> segments;
  int64_t begin = 0;
  int64_t rows = 0;
  for (int64_t k = 0; k < 203; ++k) {
    const RowSegment s{
        .begin = begin, .rows = 1 + k % 7, .row_elements = 1 + (k * k) % 700, .first_row = rows};
    segments.push_back(s);
    begin += s.rows * s.row_elements + k % 3;
    rows += s.rows;
  }
  check_row_sums(segments, begin, rows);
}

TEST(CudaBf16, RowSumsOfLongRowsHaveTheStatedOrder) {
  std::vector<RowSegment> segments;
  int64_t begin = 0;
  int64_t rows = 0;
  for (const auto& [count, width] :
       {std::pair<int64_t, int64_t>{70, 768}, {33, 2052}, {16, 4}, {100, 256}, {1, 5000}}) {
    segments.push_back({.begin = begin, .rows = count, .row_elements = width, .first_row = rows});
    begin += count * width;
    rows += count;
  }
  check_row_sums(segments, begin, rows);
}

TEST(CudaBf16, NormTreeOverSeveralLevelsOfBlocks) {
  for (const int64_t count : {int64_t{2048}, int64_t{2049}, int64_t{100003}, int64_t{4196353}}) {
    SCOPED_TRACE(count);
    std::vector<double> rows(static_cast<size_t>(count));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = 1.0 / static_cast<double>(i % 1013 + 1);
    std::vector<int64_t> order(rows.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
    GuardedBuffer<double> scratch("scratch", count);
    StepScalars s;
    s.max_norm = 0.5F;
    Rig rig = open_rig();
    EXPECT_TRUE(rig.backend
                    ->norm_tree(*rig.stream, {Tensor::of(rows.data(), DType::kF64, {count}),
                                              Tensor::of(order.data(), DType::kI64, {count}),
                                              f64(scratch, {count}), &s})
                    .ok());
    std::vector<double> v(rows.rbegin(), rows.rend());
    while (v.size() > 1) {
      std::vector<double> next;
      for (size_t i = 0; i + 1 < v.size(); i += 2) next.push_back(v[i] + v[i + 1]);
      if (v.size() % 2 != 0) next.push_back(v.back());
      v = std::move(next);
    }
    EXPECT_EQ(s.grad_norm, std::sqrt(v[0]));
  }
}

TEST(CudaBf16, AdamWGivesTheBitsOfTheHost) {
  const int64_t n = 10007;
  std::vector<float> p = exact_normal("p", n), m = exact_normal("m", n, {.std = 0.1});
  std::vector<float> v = exact_normal("v", n, {.std = 0.1});
  const std::vector<float> g = exact_normal("g", n);
  for (float& x : v) x = x * x;
  StepScalars s;
  s.lr = 1e-2F;
  s.weight_decay = 0.1F;
  s.clip = 0.37F;
  s.bias1 = 0.271F;
  s.bias2 = 0.143F;
  const std::vector<float> p0 = p, m0 = m, v0 = v;
  const std::vector<DecaySegment> segments = {{0, 5000, true}, {5003, n, false}};
  AdamWArgs a;
  a.master_S = f32(p, {n});
  a.m_S = f32(m, {n});
  a.v_S = f32(v, {n});
  a.grad_S = f32(g, {n});
  a.segments = segments;
  a.scalars = &s;
  a.beta1 = 0.9F;
  a.beta2 = 0.95F;
  a.eps = 1e-8F;
  Rig rig = open_rig();
  EXPECT_TRUE(rig.backend->adamw(*rig.stream, a).ok());
  for (size_t i = 0; i < p.size(); ++i) {
    if (i >= 5000 && i < 5003) {
      ASSERT_EQ(p[i], p0[i]);
      continue;
    }
    const float decay = i < 5000 ? s.weight_decay : 0.0F;
    const float grad = g[i] * s.clip;
    const float m1 = a.beta1 * m0[i] + (1.0F - a.beta1) * grad;
    const float v1 = a.beta2 * v0[i] + (1.0F - a.beta2) * grad * grad;
    const float update = (m1 / s.bias1) / (std::sqrt(v1 / s.bias2) + a.eps) + decay * p0[i];
    ASSERT_EQ(m[i], m1);
    ASSERT_EQ(v[i], v1);
    ASSERT_EQ(p[i], p0[i] - s.lr * update);
  }
}

}  // namespace
}  // namespace swax::test
