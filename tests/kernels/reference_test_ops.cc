// Stored cases and gradients of the single operations. See reference_test.cc.
#include <cmath>

#include "tests/kernels/reference_test_checks.h"
#include "tests/reference/adamw.h"
#include "tests/reference/attention.h"
#include "tests/reference/linear.h"
#include "tests/reference/loss.h"
#include "tests/reference/mlp.h"
#include "tests/reference/norm.h"
#include "tests/reference/rope.h"
#include "tests/support/grad_check.h"
#include "tests/support/tensor_check.h"

namespace swax::reference {
namespace {

using test::gradient_matches;
using test::tensor_near;
using testing::AssertionResult;

AssertionResult equal(std::string_view name, View got, View want) {
  return tensor_near(name, got, want, kEqualBound);
}

AssertionResult zero(std::string_view name, View x) { return equal(name, x, Vec(x.size(), 0.0)); }

double dot(View a, View b) {
  SWAX_CHECK(a.size() == b.size());
  double sum = 0;
  for (size_t e = 0; e < a.size(); ++e) sum += a[e] * b[e];
  return sum;
}

Vec normal(std::string_view stream, int64_t count, double mean = 0.0, double std = 1.0) {
  return test::widen(test::random_normal(77, stream, count, {.mean = mean, .std = std}));
}

AssertionResult rms_norm_case(Canary canary) {
  const CaseFile c = load_case("rmsnorm");
  const View x = c.in("x").values, w = c.in("w").values;
  const RmsNormGrad g = rms_norm_backward(x, w, c.in("d_y").values, c.number("eps"), canary);
  Findings f;
  f.add(equal("y", rms_norm(x, w, c.number("eps")).y_TD, c.out("y").values));
  f.add(equal("dx", g.dx_TD, c.grad("x").values));
  f.add(equal("dw", g.dw_D, c.grad("w").values));
  return f.result();
}

AssertionResult head_norm_case(Canary) {
  const CaseFile c = load_case("head_layernorm");
  const View h = c.in("h").values, w = c.in("w").values;
  const std::vector<int64_t>& shape =
      c.in("h").shape;  // B, S, NH, DV: one row, already token major
  const HeadNormSizes s{.tokens = shape[1], .heads = shape[2], .dim = shape[3]};
  const HeadNormGrad g = head_norm_backward(s, h, w, {}, c.in("d_y").values, c.number("eps"));
  Findings f;
  f.add(equal("y", head_norm(s, h, w, {}, c.number("eps")).y_THV, c.out("y").values));
  f.add(equal("dh", g.dh_THV, c.grad("h").values));
  f.add(equal("dw", g.dw_HV, c.grad("w").values));
  return f.result();
}

AssertionResult rope_case(Canary) {
  const CaseFile c = load_case("rope");
  const std::vector<int64_t>& shape = c.in("x").shape;
  const RopeSizes s{
      .tokens = shape[2], .heads = shape[1], .dim = shape[3], .base = c.number("base")};
  const Vec x = token_major(c.in("x"), 0);
  Findings f;
  f.add(equal("cos", rope_tables(s).cos_TK, c.out("cos").values));
  f.add(equal("sin", rope_tables(s).sin_TK, c.out("sin").values));
  f.add(equal("y", rope(s, x), token_major(c.out("y_half"), 0)));
  f.add(
      equal("dx", rope_inverse(s, token_major(c.in("d_y"), 0)), token_major(c.grad("x_half"), 0)));
  f.add(equal("inverse", rope_inverse(s, rope(s, x)), x));
  return f.result();
}

AssertionResult attention_case(const std::string& name, Canary canary) {
  const CaseFile c = load_case(name);
  const std::vector<int64_t>& shape = c.in("q").shape;
  const AttentionSizes s{.tokens = shape[2],
                         .q_heads = shape[1],
                         .kv_heads = shape[1],
                         .dim = shape[3],
                         .window = c.integer("window")};
  Findings f;
  for (int64_t row = 0; row < shape[0]; ++row) {
    const Vec q = token_major(c.in("q"), row), k = token_major(c.in("k"), row),
              v = token_major(c.in("v"), row);
    std::vector<int32_t> reset_T;
    if (c.has("in", "doc_start")) reset_T = batch_row_ints(c.in("doc_start"), row);
    const AttentionOut out = attention(s, q, k, v, reset_T, canary);
    const AttentionGrad g =
        attention_backward(s, q, k, v, reset_T, token_major(c.in("d_o"), row), canary);
    f.add(equal("o", out.o_THK, token_major(c.out("o"), row)));
    f.add(equal("lse", out.lse_TH, token_major(c.out("lse"), row)));
    if (s.window == 1) {  // one visible key: p = 1 whatever q and k are, so their gradient is zero
      f.add(zero("dq", g.dq_THK));
      f.add(zero("dk", g.dk_THK));
    } else {
      f.add(equal("dq", g.dq_THK, token_major(c.grad("q"), row)));
      f.add(equal("dk", g.dk_THK, token_major(c.grad("k"), row)));
    }
    f.add(equal("dv", g.dv_THK, token_major(c.grad("v"), row)));
  }
  return f.result();
}

AssertionResult swiglu_case(Canary canary) {
  const CaseFile c = load_case("swiglu");
  const MlpWeights w{
      .gate_FD = c.in("wg").values, .up_FD = c.in("wu").values, .down_DF = c.in("wd").values};
  const int64_t dim = c.in("x").shape[1];
  const MlpGrad g = mlp_backward(c.in("x").values, w, c.in("d_y").values, dim, canary);
  Findings f;
  f.add(equal("y", mlp(c.in("x").values, w, dim, canary), c.out("y").values));
  f.add(equal("dx", g.dx_TD, c.grad("x").values));
  f.add(equal("dwg", g.dgate_FD, c.grad("wg").values));
  f.add(equal("dwu", g.dup_FD, c.grad("wu").values));
  f.add(equal("dwd", g.ddown_DF, c.grad("wd").values));
  return f.result();
}

AssertionResult cross_entropy_case(const std::string& name, Canary canary) {
  const CaseFile c = load_case(name);
  const CrossEntropyOut out = cross_entropy(
      c.in("logits").values, c.in("targets").ints,
      {.cap = c.number("softcap"), .z_coef = c.number("zcoef"), .count = 0, .canary = canary});
  Findings f;
  f.add(equal("loss", Vec{out.loss}, c.out("loss").values));
  f.add(equal("lse", out.lse_T, c.out("lse").values));
  f.add(equal("dlogits", out.dlogits_TV, c.grad("logits").values));
  return f.result();
}

AssertionResult linear_cross_entropy_case(Canary canary) {
  const CaseFile c = load_case("linear_cross_entropy");
  const HeadLossOut out = linear_cross_entropy(c.in("h").values, c.in("w").values,
                                               c.in("targets").ints, {.canary = canary});
  Findings f;
  f.add(equal("loss", Vec{out.loss}, c.out("loss").values));
  f.add(equal("dh", out.dx_TD, c.grad("h").values));
  f.add(equal("dw", out.dw_VD, c.grad("w").values));
  return f.result();
}

AssertionResult adamw_case(const std::string& name, Canary) {
  const CaseFile c = load_case(name);
  const AdamWOptions o{.lr = c.number("lr"),
                       .beta1 = c.number("beta1"),
                       .beta2 = c.number("beta2"),
                       .eps = c.number("eps"),
                       .weight_decay = c.number("weight_decay")};
  const size_t size = c.in("p0").values.size();
  AdamWState state{.p = c.in("p0").values, .m = Vec(size, 0.0), .v = Vec(size, 0.0)};
  Findings f;
  for (int64_t step = 1; step <= 3; ++step) {
    const std::string n = std::to_string(step);
    const View g = c.in("g" + n).values;
    const double norm = std::sqrt(sum_of_squares(g));
    if (c.has("out", "norm" + n)) f.add(equal("norm" + n, Vec{norm}, c.out("norm" + n).values));
    adamw_step(o, step, clip_factor(norm, c.number("max_norm")), g, state);
    f.add(equal("p" + n, state.p, c.out("p" + n).values));
    f.add(equal("m" + n, state.m, c.out("m" + n).values));
    f.add(equal("v" + n, state.v, c.out("v" + n).values));
  }
  return f.result();
}

AssertionResult linear_gradient(Canary canary) {
  const int64_t in = 11, out = 9, tokens = 10;
  const Vec x = normal("x", tokens * in), w = normal("w", out * in),
            dy = normal("dy", tokens * out);
  const LinearGrad g = linear_backward(x, w, dy, in, canary);
  Findings f;
  f.add(gradient_matches(
      "dx", [&](View p) { return dot(linear(p, w, in), dy); }, x, g.dx_TI));
  f.add(gradient_matches(
      "dw", [&](View p) { return dot(linear(x, p, in), dy); }, w, g.dw_OI));
  return f.result();
}

AssertionResult gate_gradient(
    Canary canary) {  // bias and soft cap, values up to the edge of the cap
  const double cap = 15.0;
  const Vec x = normal("x", 24, 0.0, 12.0), b = normal("b", 4), dy = normal("dy", 24);
  const auto loss = [&](View px, View pb) { return dot(soft_cap(add_bias(px, pb), cap), dy); };
  const Vec dx = soft_cap_backward(soft_cap(add_bias(x, b), cap), dy, cap, canary);
  Findings f;
  f.add(gradient_matches(
      "dx", [&](View p) { return loss(p, b); }, x, dx));
  f.add(gradient_matches(
      "db", [&](View p) { return loss(x, p); }, b, sum_over_tokens(dx, 4)));
  return f.result();
}

AssertionResult rms_norm_gradient(Canary canary) {
  const double eps = 1e-3;  // large enough to matter
  const Vec x = normal("x", 3 * 7), w = normal("w", 7, 1.0, 0.3), dy = normal("dy", 3 * 7);
  const RmsNormGrad g = rms_norm_backward(x, w, dy, eps, canary);
  Findings f;
  f.add(gradient_matches(
      "dx", [&](View p) { return dot(rms_norm(p, w, eps).y_TD, dy); }, x, g.dx_TD));
  f.add(gradient_matches(
      "dw", [&](View p) { return dot(rms_norm(x, p, eps).y_TD, dy); }, w, g.dw_D));
  return f.result();
}

AssertionResult head_norm_gradient(Canary) {
  const HeadNormSizes s{.tokens = 3, .heads = 2, .dim = 5};
  const double eps = 1e-3;
  const Vec h = normal("h", 30, 0.5), w = normal("w", 10, 1.0, 0.3), gate = normal("gate", 30),
            dy = normal("dy", 30);
  const auto loss = [&](View ph, View pw, View pg) {
    return dot(head_norm(s, ph, pw, pg, eps).y_THV, dy);
  };
  const HeadNormGrad g = head_norm_backward(s, h, w, gate, dy, eps);
  Findings f;
  f.add(gradient_matches(
      "dh", [&](View p) { return loss(p, w, gate); }, h, g.dh_THV));
  f.add(gradient_matches(
      "dw", [&](View p) { return loss(h, p, gate); }, w, g.dw_HV));
  f.add(gradient_matches(
      "dgate", [&](View p) { return loss(h, w, p); }, gate, g.dgate_THV));
  const HeadNormGrad plain = head_norm_backward(s, h, w, {}, dy, eps);
  f.add(gradient_matches(
      "dh, no gate", [&](View p) { return loss(p, w, {}); }, h, plain.dh_THV));
  return f.result();
}

AssertionResult rope_gradient(Canary) {
  const RopeSizes s{.tokens = 4, .heads = 2, .dim = 6, .base = 100.0, .first_position = 9};
  const Vec x = normal("x", 48), dy = normal("dy", 48);
  return gradient_matches(
      "dx", [&](View p) { return dot(rope(s, p), dy); }, x, rope_inverse(s, dy));
}

// Windows below, at and above the length, grouped heads, borders.
AssertionResult attention_gradient(Canary canary) {
  Findings f;
  const std::vector<int32_t> borders = test::doc_starts(13, {0, 4, 5, 11});
  for (const int64_t kv_heads : {1, 2, 4}) {
    for (const int64_t window : {2, 5, 13, 40}) {
      for (const IntView reset_T : {IntView(), IntView(borders)}) {
        const AttentionSizes s{
            .tokens = 13, .q_heads = 4, .kv_heads = kv_heads, .dim = 3, .window = window};
        const int64_t q_size = 13 * 4 * 3, k_size = 13 * kv_heads * 3;
        const Vec q = normal("q", q_size), k = normal("k", k_size), v = normal("v", k_size),
                  d_o = normal("do", q_size);
        const auto loss = [&](View pq, View pk, View pv) {
          return dot(attention(s, pq, pk, pv, reset_T).o_THK, d_o);
        };
        const AttentionGrad g = attention_backward(s, q, k, v, reset_T, d_o, canary);
        f.add(gradient_matches(
            "dq", [&](View p) { return loss(p, k, v); }, q, g.dq_THK));
        f.add(gradient_matches(
            "dk", [&](View p) { return loss(q, p, v); }, k, g.dk_THK));
        f.add(gradient_matches(
            "dv", [&](View p) { return loss(q, k, p); }, v, g.dv_THK));
      }
    }
  }
  return f.result();
}

AssertionResult mlp_gradient(Canary canary) {
  const int64_t dim = 5, ff = 9, tokens = 9;
  const Vec x = normal("x", tokens * dim), wg = normal("wg", ff * dim), wu = normal("wu", ff * dim);
  const Vec wd = normal("wd", ff * dim), dy = normal("dy", tokens * dim);
  const auto loss = [&](View px, View pg, View pu, View pd) {
    return dot(mlp(px, {.gate_FD = pg, .up_FD = pu, .down_DF = pd}, dim), dy);
  };
  const MlpGrad g = mlp_backward(x, {.gate_FD = wg, .up_FD = wu, .down_DF = wd}, dy, dim, canary);
  Findings f;
  f.add(gradient_matches(
      "dx", [&](View p) { return loss(p, wg, wu, wd); }, x, g.dx_TD));
  f.add(gradient_matches(
      "dwg", [&](View p) { return loss(x, p, wu, wd); }, wg, g.dgate_FD));
  f.add(gradient_matches(
      "dwu", [&](View p) { return loss(x, wg, p, wd); }, wu, g.dup_FD));
  f.add(gradient_matches(
      "dwd", [&](View p) { return loss(x, wg, wu, p); }, wd, g.ddown_DF));
  return f.result();
}

AssertionResult embedding_gradient(Canary) {
  const std::vector<int32_t> tokens{3, 0, 3,
                                    5, 3, 1};  // a repeated token, and ids that never occur
  const Vec w = normal("w", 6 * 4), dy = normal("dy", 6 * 4);
  return gradient_matches("dw", [&](View p) { return dot(embedding(p, tokens, 4), dy); }, w,
                          embedding_backward(dy, tokens, 6, 4), {.samples = 24});
}

AssertionResult loss_gradient(Canary canary) {
  const int64_t dim = 9, vocab = 13;
  const std::vector<int32_t> targets{4, -100, 0, 12, -1, 7, 7, 2, 1};
  const Vec x = normal("x", 9 * dim, 0.0, 2.0), w = normal("w", vocab * dim, 0.0, 2.0);
  Findings f;
  for (const double cap : {0.0, 6.0}) {
    for (const int64_t count : {0, 31}) {  // own targets, or those of a larger step
      const LossOptions right{.cap = cap, .z_coef = 1e-2, .count = count};
      LossOptions planted = right;
      planted.canary = canary;
      const HeadLossOut out = linear_cross_entropy(x, w, targets, planted);
      f.add(gradient_matches(
          "dx", [&](View p) { return linear_cross_entropy(p, w, targets, right).loss; }, x,
          out.dx_TD));
      f.add(gradient_matches(
          "dw", [&](View p) { return linear_cross_entropy(x, p, targets, right).loss; }, w,
          out.dw_VD));
    }
  }
  return f.result();
}

}  // namespace

std::vector<Check> op_case_checks() {
  std::vector<Check> checks{{"rmsnorm", rms_norm_case},
                            {"head_layernorm", head_norm_case},
                            {"rope", rope_case},
                            {"swiglu", swiglu_case},
                            {"linear_cross_entropy", linear_cross_entropy_case}};
  for (const char* name : {"swa_w8", "swa_w1", "swa_full", "swa_docs"}) {
    checks.push_back({name, [=](Canary canary) { return attention_case(name, canary); }});
  }
  for (const char* name : {"cross_entropy", "cross_entropy_cap30_z"}) {
    checks.push_back({name, [=](Canary canary) { return cross_entropy_case(name, canary); }});
  }
  for (const char* name : {"adamw", "adamw_clip1"}) {
    checks.push_back({name, [=](Canary canary) { return adamw_case(name, canary); }});
  }
  return checks;
}

std::vector<Check> op_gradient_checks() {
  return {{"linear", linear_gradient},     {"gate", gate_gradient},
          {"rms_norm", rms_norm_gradient}, {"head_norm", head_norm_gradient},
          {"rope", rope_gradient},         {"attention", attention_gradient},
          {"mlp", mlp_gradient},           {"embedding", embedding_gradient},
          {"loss", loss_gradient}};
}

}  // namespace swax::reference
