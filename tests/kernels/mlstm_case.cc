#include "tests/kernels/mlstm_case.h"

#include <algorithm>
#include <cmath>

namespace swax::test {
namespace {

std::vector<float> part(const std::vector<float>& x, int64_t row, int64_t begin, int64_t count) {
  return {x.begin() + begin * row, x.begin() + (begin + count) * row};
}

std::vector<uint8_t> reset_bytes(const MlstmCase& c) { return {c.reset.begin(), c.reset.end()}; }

struct Reference {
  std::vector<reference::Vec> forward;   // h, m, den, states
  std::vector<reference::Vec> backward;  // dq, dk, dv, di, df
};

Reference reference_of(const MlstmCase& c, const std::vector<reference::Vec>& x,
                       reference::Canary canary) {
  const reference::MlstmSizes sizes{c.tokens, c.heads, c.qk, c.v};
  reference::MlstmInput input;
  input.q_THK = x[0];
  input.k_THK = x[1];
  input.v_THV = x[2];
  input.i_TH = x[3];
  input.f_TH = x[4];
  input.reset_T = c.reset;
  const auto out = reference::mlstm_chunkwise(sizes, input, c.chunk, canary);
  const auto grad = reference::mlstm_backward(sizes, input, c.chunk, x[5], nullptr, canary);
  reference::Vec states;
  for (const auto& s : out.states) {
    const reference::Vec packed = reference::pack_state(sizes, s);
    states.insert(states.end(), packed.begin(), packed.end());
  }
  return {{out.h_THV, out.m_TH, out.den_TH, states},
          {grad.dq_THK, grad.dk_THK, grad.dv_THV, grad.di_TH, grad.df_TH}};
}

double norm(const reference::Vec& x) {
  double sum = 0.0;
  for (const double e : x) sum += e * e;
  return std::sqrt(sum);
}

// Raises each condition number to what one random change of the inputs shows. Gates are exponents:
// their change is relative to max(1, |gate|).
void raise_condition(const std::vector<reference::Vec>& got,
                     const std::vector<reference::Vec>& want, double change,
                     std::vector<double>& condition) {
  for (size_t j = 0; j < want.size(); ++j) {
    if (norm(want[j]) == 0.0) continue;
    const double moved = rel_error(std::span<const double>(got[j]), want[j]);
    condition[j] = std::max(condition[j], moved / change);
  }
}

struct Conditions {
  std::vector<double> forward = std::vector<double>(4, 1.0);
  std::vector<double> backward = std::vector<double>(5, 1.0);
};

Conditions conditions_of(const MlstmCase& c, const std::vector<reference::Vec>& x,
                         const Reference& want) {
  constexpr double kChange = 1e-7;
  Conditions out;
  for (uint64_t draw = 0; draw < 4; ++draw) {
    std::vector<reference::Vec> y = x;
    for (size_t j = 0; j < y.size(); ++j) {
      const std::vector<float> direction = random_normal(
          100 + draw, "direction " + std::to_string(j), static_cast<int64_t>(y[j].size()));
      for (size_t e = 0; e < y[j].size(); ++e) {
        const bool gate = j == 3 || j == 4;
        const double size = gate ? std::max(1.0, std::abs(y[j][e])) : y[j][e];
        y[j][e] += kChange * size * static_cast<double>(direction[e]);
      }
    }
    const Reference moved = reference_of(c, y, reference::Canary::kNone);
    raise_condition(moved.forward, want.forward, kChange, out.forward);
    raise_condition(moved.backward, want.backward, kChange, out.backward);
  }
  const Reference held = reference_of(c, x, reference::Canary::kNoNormaliser);
  for (size_t j = 0; j < want.backward.size(); ++j) {
    const double whole = norm(want.backward[j]);
    if (whole > 0.0) out.backward[j] *= std::max(1.0, norm(held.backward[j]) / whole);
  }
  return out;
}

}  // namespace

MlstmInputs mlstm_inputs(const MlstmCase& c) {
  const int64_t gates = c.tokens * c.heads;
  MlstmInputs in;
  in.q = random_normal(2, "q", gates * c.qk);
  in.k = random_normal(2, "k", gates * c.qk);
  in.v = random_normal(2, "v", gates * c.v);
  in.dh = random_normal(2, "dh", gates * c.v);
  in.i = random_normal(2, "i", gates, {.mean = c.i_mean, .std = c.gate_spread});
  in.f = random_normal(2, "f", gates, {.mean = c.f_mean, .std = c.gate_spread});
  if (!c.alternate_gates) return in;
  for (int64_t j = 0; j < gates; ++j) {
    in.i[static_cast<size_t>(j)] = j / c.heads % 3 == 0 ? 15.0F : -15.0F;
    in.f[static_cast<size_t>(j)] = j / c.heads % 4 == 0 ? -15.0F : 15.0F;
  }
  return in;
}

MlstmInputs mlstm_slice(const MlstmCase& c, const MlstmInputs& in, int64_t begin, int64_t count) {
  MlstmInputs out;
  out.q = part(in.q, c.heads * c.qk, begin, count);
  out.k = part(in.k, c.heads * c.qk, begin, count);
  out.v = part(in.v, c.heads * c.v, begin, count);
  out.dh = part(in.dh, c.heads * c.v, begin, count);
  out.i = part(in.i, c.heads, begin, count);
  out.f = part(in.f, c.heads, begin, count);
  return out;
}

MlstmWants mlstm_wants(const MlstmCase& c, const MlstmInputs& in, reference::Canary canary) {
  const std::vector<reference::Vec> x = {widen(in.q), widen(in.k), widen(in.v),
                                         widen(in.i), widen(in.f), widen(in.dh)};
  const Reference want = reference_of(c, x, canary);
  const Conditions condition = c.conditioned ? conditions_of(c, x, want) : Conditions{};
  const char* const forward_names[] = {"h", "m", "den", "states"};
  const char* const backward_names[] = {"dq", "dk", "dv", "di", "df"};
  MlstmWants out;
  for (size_t j = 0; j < want.forward.size(); ++j) {
    out.forward.push_back({forward_names[j], want.forward[j],
                           rounding_bound(c.chunk + c.qk, 8) * condition.forward[j]});
  }
  for (size_t j = 0; j < want.backward.size(); ++j) {
    out.backward.push_back({backward_names[j], want.backward[j],
                            rounding_bound(c.chunk + c.qk, 16) * condition.backward[j]});
  }
  return out;
}

MlstmResults run_mlstm(const MlstmCase& c, const MlstmInputs& in, Rig& rig,
                       const MlstmFinal* initial) {
  const int64_t gates = c.tokens * c.heads;
  const int64_t chunks = mlstm_chunks(c.tokens, c.chunk);
  const int64_t state = c.heads * c.qk * (c.v + 1);
  const auto qk_dims = {c.tokens, c.heads, c.qk};
  const auto v_dims = {c.tokens, c.heads, c.v};
  const auto gate_dims = {c.tokens, c.heads};
  const std::vector<uint8_t> reset = reset_bytes(c);
  GuardedBuffer<float> h("h", gates * c.v), states("states", (chunks + 1) * state);
  GuardedBuffer<float> m_state("m_state", (chunks + 1) * c.heads), m("m", gates), den("den", gates);
  GuardedBuffer<float> scratch("scratch", mlstm_scratch(c.tokens, c.heads, c.qk, c.v, c.chunk));
  if (initial != nullptr) {
    std::copy(initial->state.begin(), initial->state.end(), states.data());
    std::copy(initial->m.begin(), initial->m.end(), m_state.data());
  }
  MlstmArgs a;
  a.q_TNK = f32(in.q, qk_dims);
  a.k_TNK = f32(in.k, qk_dims);
  a.v_TNU = f32(in.v, v_dims);
  a.i_TN = f32(in.i, gate_dims);
  a.f_TN = f32(in.f, gate_dims);
  a.reset_T = u8(reset, {c.tokens});
  a.h_TNU = f32(h, v_dims);
  a.states_CNKU1 = f32(states, {chunks + 1, c.heads, c.qk, c.v + 1});
  a.m_state_CN = f32(m_state, {chunks + 1, c.heads});
  a.m_TN = f32(m, gate_dims);
  a.den_TN = f32(den, gate_dims);
  a.scratch = f32(scratch, {scratch.size()});
  a.chunk = c.chunk;
  a.initial_state = initial != nullptr;
  EXPECT_TRUE(rig.backend->mlstm(*rig.stream, a).ok());
  GuardedBuffer<float> dq("dq", gates * c.qk), dk("dk", gates * c.qk), dv("dv", gates * c.v);
  GuardedBuffer<float> di("di", gates), df("df", gates);
  GuardedBuffer<float> scratch_back("backward scratch",
                                    mlstm_backward_scratch(c.tokens, c.heads, c.qk, c.v, c.chunk));
  MlstmBackwardArgs b;
  b.q_TNK = a.q_TNK;
  b.k_TNK = a.k_TNK;
  b.v_TNU = a.v_TNU;
  b.i_TN = a.i_TN;
  b.f_TN = a.f_TN;
  b.reset_T = a.reset_T;
  b.h_TNU = a.h_TNU;
  b.states_CNKU1 = a.states_CNKU1;
  b.m_state_CN = a.m_state_CN;
  b.m_TN = a.m_TN;
  b.den_TN = a.den_TN;
  b.dh_TNU = f32(in.dh, v_dims);
  b.dq_TNK = f32(dq, qk_dims);
  b.dk_TNK = f32(dk, qk_dims);
  b.dv_TNU = f32(dv, v_dims);
  b.di_TN = f32(di, gate_dims);
  b.df_TN = f32(df, gate_dims);
  b.scratch = f32(scratch_back, {scratch_back.size()});
  b.chunk = c.chunk;
  EXPECT_TRUE(rig.backend->mlstm_backward(*rig.stream, b).ok());
  MlstmResults out;
  out.forward = {
      {"h", h.values()}, {"m", m.values()}, {"den", den.values()}, {"states", states.values()}};
  out.backward = {{"dq", dq.values()},
                  {"dk", dk.values()},
                  {"dv", dv.values()},
                  {"di", di.values()},
                  {"df", df.values()}};
  out.final_state.state = {states.data() + chunks * state, states.data() + (chunks + 1) * state};
  out.final_state.m = {m_state.data() + chunks * c.heads, m_state.data() + (chunks + 1) * c.heads};
  return out;
}

}  // namespace swax::test
