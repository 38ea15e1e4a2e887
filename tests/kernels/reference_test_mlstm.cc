// Stored cases, agreement of the three forms and gradients of the mLSTM cell. See
// reference_test.cc.
#include <cmath>

#include "tests/kernels/reference_test_checks.h"
#include "tests/reference/mlstm.h"
#include "tests/support/grad_check.h"
#include "tests/support/tensor_check.h"

namespace swax::reference {
namespace {

using test::gradient_matches;
using test::tensor_near;
using testing::AssertionResult;

AssertionResult equal(const std::string& name, View got, View want) {
  return tensor_near(name, got, want, kEqualBound);
}

AssertionResult equal_out(const std::string& form, const MlstmOut& got, const MlstmOut& want) {
  Findings f;
  f.add(equal(form + " h", got.h_THV, want.h_THV));
  f.add(equal(form + " m", got.m_TH, want.m_TH));
  f.add(equal(form + " den", got.den_TH, want.den_TH));
  f.add(equal(form + " C", got.last.c_HKV, want.last.c_HKV));
  f.add(equal(form + " n", got.last.n_HK, want.last.n_HK));
  f.add(equal(form + " m_last", got.last.m_H, want.last.m_H));
  return f.result();
}

AssertionResult equal_grad(const std::string& form, const MlstmGrad& got, const MlstmGrad& want) {
  Findings f;
  f.add(equal(form + " dq", got.dq_THK, want.dq_THK));
  f.add(equal(form + " dk", got.dk_THK, want.dk_THK));
  f.add(equal(form + " dv", got.dv_THV, want.dv_THV));
  f.add(equal(form + " di", got.di_TH, want.di_TH));
  f.add(equal(form + " df", got.df_TH, want.df_TH));
  f.add(equal(form + " dC0", got.d_initial.dc_HKV, want.d_initial.dc_HKV));
  f.add(equal(form + " dn0", got.d_initial.dn_HK, want.d_initial.dn_HK));
  return f.result();
}

// One stored row in all forms and with several chunks.
AssertionResult case_row(const CaseFile& c, int64_t row, Canary canary) {
  const std::vector<int64_t>& qk = c.in("q").shape;
  const MlstmSizes s{.tokens = qk[2], .heads = qk[1], .qk_dim = qk[3], .v_dim = c.in("v").shape[3]};
  const Vec q = token_major(c.in("q"), row), k = token_major(c.in("k"), row),
            v = token_major(c.in("v"), row);
  const Vec i = token_major(c.in("i"), row), g = token_major(c.in("f"), row),
            dh = token_major(c.in("d_h"), row);
  std::vector<int32_t> reset_T;
  if (c.has("in", "doc_start")) reset_T = batch_row_ints(c.in("doc_start"), row);
  const MlstmInput in{.q_THK = q,
                      .k_THK = k,
                      .v_THV = v,
                      .i_TH = i,
                      .f_TH = g,
                      .reset_T = reset_T,
                      .eps = c.number("eps"),
                      .m0 = c.number("m0")};
  MlstmOut want{.h_THV = token_major(c.out("h"), row),
                .m_TH = token_major(c.out("m"), row),
                .den_TH = {},
                .scale_TH = token_major(c.out("den"), row),
                .last = {},
                .states = {}};
  want.last = {.c_HKV = batch_row(c.out("C_last"), row),
               .n_HK = batch_row(c.out("n_last"), row),
               .m_H = batch_row(c.out("m_last"), row)};
  Findings f;
  const auto compare = [&](const std::string& form, const MlstmOut& got) {
    f.add(equal(form + " scale", got.scale_TH, want.scale_TH));
    want.den_TH = got.den_TH;  // not stored
    f.add(equal_out(form, got, want));
  };
  compare("recurrent", mlstm_recurrent(s, in, canary));
  compare("parallel", mlstm_parallel(s, in));
  for (const int64_t chunk : {1, 7, 16, 32, 100}) {
    const std::string form = "chunk " + std::to_string(chunk);
    compare(form, mlstm_chunkwise(s, in, chunk, canary));
    const MlstmGrad grad = mlstm_backward(s, in, chunk, dh, nullptr, canary);
    f.add(equal(form + " dq", grad.dq_THK, token_major(c.grad("q"), row)));
    f.add(equal(form + " dk", grad.dk_THK, token_major(c.grad("k"), row)));
    f.add(equal(form + " dv", grad.dv_THV, token_major(c.grad("v"), row)));
    f.add(equal(form + " di", grad.di_TH, token_major(c.grad("i"), row)));
    f.add(equal(form + " df", grad.df_TH, token_major(c.grad("f"), row)));
  }
  return f.result();
}

AssertionResult mlstm_case(const std::string& name, Canary canary) {
  const CaseFile c = load_case(name);
  Findings f;
  for (int64_t row = 0; row < c.in("q").shape[0]; ++row) f.add(case_row(c, row, canary));
  return f.result();
}

// Seeded inputs of one kind of difficulty.
struct Problem {
  std::string name;
  MlstmSizes s{.tokens = 41, .heads = 2, .qk_dim = 3, .v_dim = 5};
  Vec q, k, v, i, f;
  std::vector<int32_t> reset_T;
  MlstmState state;
  bool with_state = false;
  double m0 = -1e30;
  double eps = 1e-6;

  MlstmInput input() const {
    return {.q_THK = q,
            .k_THK = k,
            .v_THV = v,
            .i_TH = i,
            .f_TH = f,
            .reset_T = reset_T,
            .initial = with_state ? &state : nullptr,
            .eps = eps,
            .m0 = m0};
  }
};

Vec normal(const std::string& stream, int64_t count, double mean = 0.0, double std = 1.0) {
  return test::widen(test::random_normal(5, stream, count, {.mean = mean, .std = std}));
}

Problem problem(const std::string& name) {
  Problem p{.name = name, .q = {}, .k = {}, .v = {}, .i = {}, .f = {}, .reset_T = {}, .state = {}};
  const int64_t rows = p.s.tokens * p.s.heads;
  p.q = normal("q", rows * p.s.qk_dim);
  p.k = normal("k", rows * p.s.qk_dim);
  p.v = normal("v", rows * p.s.v_dim);
  p.i = normal("i", rows, 0.0, 1.5);
  p.f = normal("f", rows, 3.0, 1.5);
  p.state = {.c_HKV = normal("C", p.s.heads * p.s.qk_dim * p.s.v_dim),
             .n_HK = normal("n", p.s.heads * p.s.qk_dim),
             .m_H = normal("m", p.s.heads)};
  return p;
}

// model-spec 9.2: mandatory cases. 8 divides neither 41 nor the later borders; 5, 7, 13 and 41 come
// as chunks, too.
std::vector<Problem> problems() {
  std::vector<Problem> all;
  const int64_t tokens = problem("").s.tokens;
  const std::vector<int32_t> none;
  std::vector<int32_t> every(static_cast<size_t>(tokens), 1);
  const std::pair<const char*, std::vector<int32_t>> borders[] = {
      {"no border", none},
      {"border at 0", test::doc_starts(tokens, {0})},
      {"inside a chunk", test::doc_starts(tokens, {5, 13, 27})},
      {"at chunk edges", test::doc_starts(tokens, {8, 16, 32, 40})},
      {"last token of a chunk", test::doc_starts(tokens, {7, 15, 31})},
      {"consecutive", test::doc_starts(tokens, {1, 2, 15, 16, 17, 23, 24})},
      {"every token", every}};
  for (const auto& [name, reset_T] : borders) {
    for (const bool with_state : {false, true}) {
      for (const double m0 : {-1e30, 0.0}) {
        Problem p = problem(std::string(name) + (with_state ? ", state" : "") +
                            (m0 == 0 ? ", m0 = 0" : ""));
        p.reset_T = reset_T;
        p.with_state = with_state;
        p.m0 = m0;
        all.push_back(p);
      }
    }
  }
  const int64_t rows = tokens * problem("").s.heads;
  Problem edges = problem("gates at both caps");
  for (int64_t e = 0; e < rows; ++e) at(edges.i, e) = e * 7 % 3 == 0 ? 15.0 : -15.0;
  for (int64_t e = 0; e < rows; ++e) at(edges.f, e) = e * 5 % 4 < 2 ? 15.0 : -15.0;
  edges.reset_T = test::doc_starts(tokens, {9, 24});
  edges.with_state = true;
  all.push_back(edges);
  Problem first = problem("bias of the first step");
  first.i = normal("i", rows, -10.0, 0.3);
  first.f = normal("f", rows, 4.5, 0.3);
  all.push_back(first);
  Problem same = problem("equal keys");
  for (int64_t e = 0; e < length(same.k); ++e)
    at(same.k, e) = 0.5 + static_cast<double>(e % same.s.qk_dim);
  all.push_back(same);
  return all;
}

AssertionResult forms_agree(const Problem& p, Canary canary) {
  const MlstmOut want = mlstm_recurrent(p.s, p.input(), canary);
  Findings f;
  f.add(equal_out("parallel", mlstm_parallel(p.s, p.input()), want));
  for (const int64_t chunk : {1, 5, 7, 8, 13, 41, 64}) {
    f.add(
        equal_out("chunk " + std::to_string(chunk), mlstm_chunkwise(p.s, p.input(), chunk), want));
  }
  return f.result();
}

// The gradient does not depend on the chunk, and a cut sequence gives the gradients of the whole.
AssertionResult chunks_agree(const Problem& p, Canary canary) {
  const Vec dh = normal("dh", p.s.tokens * p.s.heads * p.s.v_dim);
  const MlstmStateGrad d_last{.dc_HKV = normal("dC", length(p.state.c_HKV)),
                              .dn_HK = normal("dn", length(p.state.n_HK))};
  const MlstmGrad want = mlstm_backward(p.s, p.input(), p.s.tokens, dh, &d_last);
  Findings f;
  for (const int64_t chunk : {1, 5, 8, 13, 20}) {
    f.add(equal_grad("chunk " + std::to_string(chunk),
                     mlstm_backward(p.s, p.input(), chunk, dh, &d_last, canary), want));
  }
  return f.result();
}

// h and the last memory at the fixed scale e^{-m_fixed}: with eps = 0 neither depends on m. With
// m_fixed = m_last the gradient of this loss by the stored C and n is `weight`.
double problem_loss(const Problem& p, View dh, const MlstmStateGrad& weight, View m_fixed_H) {
  const MlstmOut out = mlstm_recurrent(p.s, p.input());
  const auto scale = [&](int64_t head) {
    return std::exp(at(out.last.m_H, head) - at(m_fixed_H, head));
  };
  double loss = 0;
  for (size_t e = 0; e < dh.size(); ++e) loss += dh[e] * out.h_THV[e];
  for (int64_t e = 0; e < length(weight.dc_HKV); ++e) {
    loss += scale(e / (p.s.qk_dim * p.s.v_dim)) * at(weight.dc_HKV, e) * at(out.last.c_HKV, e);
  }
  for (int64_t e = 0; e < length(weight.dn_HK); ++e) {
    loss += scale(e / p.s.qk_dim) * at(weight.dn_HK, e) * at(out.last.n_HK, e);
  }
  return loss;
}

AssertionResult cell_gradient(Problem p, Canary canary) {
  p.eps = 0.0;
  const Vec dh = normal("dh", length(p.v));
  const MlstmStateGrad weight{.dc_HKV = normal("dC", length(p.state.c_HKV)),
                              .dn_HK = normal("dn", length(p.state.n_HK))};
  const Vec m_last = mlstm_recurrent(p.s, p.input()).last.m_H;
  const MlstmGrad g = mlstm_backward(p.s, p.input(), 8, dh, &weight, canary);
  Findings f;
  const auto check = [&](const std::string& name, Vec& x, View grad) {
    const Vec kept = x;
    f.add(gradient_matches(name,
                           [&](View point) {
                             x.assign(point.begin(), point.end());
                             return problem_loss(p, dh, weight, m_last);
                           },
                           kept, grad, {.samples = length(kept)}));
    x = kept;
  };
  check("dq", p.q, g.dq_THK);
  check("dk", p.k, g.dk_THK);
  check("dv", p.v, g.dv_THV);
  check("di", p.i, g.di_TH);
  check("df", p.f, g.df_TH);
  if (p.with_state) {
    check("dC0", p.state.c_HKV, g.d_initial.dc_HKV);
    check("dn0", p.state.n_HK, g.d_initial.dn_HK);
  }
  return f.result();
}

}  // namespace

std::vector<Check> mlstm_case_checks() {
  std::vector<Check> checks;
  for (const char* name : {"mlstm", "mlstm_extreme", "mlstm_init", "mlstm_docs"}) {
    checks.push_back({name, [=](Canary canary) { return mlstm_case(name, canary); }});
  }
  return checks;
}

std::vector<Check> mlstm_form_checks() {
  std::vector<Check> checks;
  for (const Problem& p : problems()) {
    checks.push_back({"forms, " + p.name, [=](Canary canary) { return forms_agree(p, canary); }});
    checks.push_back({"chunks, " + p.name, [=](Canary canary) { return chunks_agree(p, canary); }});
  }
  return checks;
}

std::vector<Check> mlstm_gradient_checks() {
  std::vector<Check> checks;
  for (const Problem& p : problems()) {
    if (p.m0 == 0.0) continue;  // the loss does not depend on m0
    checks.push_back({"cell, " + p.name, [=](Canary canary) { return cell_gradient(p, canary); }});
  }
  return checks;
}

}  // namespace swax::reference
