#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/tensor_check.h"
#include "tests/worker/rounded_cells.h"

namespace swax::test {
namespace {

using Vec = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

double bf16(double x) { return bf16_round(static_cast<float>(x)); }

double dot(const float* a, const float* b, int64_t count) {
  double sum = 0.0;
  for (int64_t e = 0; e < count; ++e) sum += static_cast<double>(a[e]) * static_cast<double>(b[e]);
  return sum;
}
// sum[e] += factor * x[e]
template <typename T>
void add(double* sum, double factor, const T* x, int64_t count) {
  for (int64_t e = 0; e < count; ++e) sum[e] += factor * static_cast<double>(x[e]);
}
void store(float* to, const Vec& from) {
  for (size_t e = 0; e < from.size(); ++e) to[e] = static_cast<float>(bf16(from[e]));
}
float* row(const Tensor& x, int64_t t, int64_t head) {
  return x.f32() + t * x.row_stride + head * x.dims[2];
}

// One head of a call: sizes, gates, what forward leaves for backward.
template <typename Args>
struct Head {
  Head(const Args& args, int64_t index) : a(args), head(index) {
    for (int64_t t = 0; t < tokens; ++t) {
      const double f = gate(a.f_TN, t);
      log_forget.push_back(std::min(f, 0.0) - std::log1p(std::exp(-std::abs(f))));
    }
  }
  const Args& a;
  const int64_t head;
  const int64_t tokens = a.q_TNK.dims[0], heads = a.q_TNK.dims[1], qk = a.q_TNK.dims[2];
  const int64_t v = a.v_TNU.dims[2], chunks = mlstm_chunks(tokens, a.chunk);
  const double scale = 1.0 / std::sqrt(static_cast<double>(qk));
  Vec log_forget;

  float& gate(const Tensor& x, int64_t t) const { return x.f32()[t * heads + head]; }
  float& m_before(int64_t c) const { return a.m_state_CN.f32()[c * heads + head]; }
  bool reset(int64_t t) const { return !a.reset_T.empty() && a.reset_T.u8()[t] != 0; }
  int64_t begin(int64_t c) const { return c * a.chunk; }
  int64_t end(int64_t c) const { return std::min(tokens, (c + 1) * a.chunk); }
  const float* q(int64_t t) const { return row(a.q_TNK, t, head); }
  const float* k(int64_t t) const { return row(a.k_TNK, t, head); }
  const float* value(int64_t t) const { return row(a.v_TNU, t, head); }
  // [K, U + 1] before chunk c.
  float* state(int64_t c) const { return a.states_CNKU1.f32() + (c * heads + head) * qk * (v + 1); }

  // Log weights of the tokens of chunk c in the state after it; the last entry: of that before it.
  Vec write_logs(int64_t c) const {
    Vec logs(static_cast<size_t>(end(c) - begin(c)) + 1);
    double behind = 0.0;  // sum of the log gates behind token t
    for (int64_t t = end(c) - 1; t >= begin(c); --t) {
      logs[static_cast<size_t>(t - begin(c))] = behind + static_cast<double>(gate(a.i_TN, t));
      behind = reset(t) ? -kInf : behind + log_forget[static_cast<size_t>(t)];
    }
    logs.back() = behind + static_cast<double>(m_before(c));
    return logs;
  }
  // Log weights of the tokens begin(c) .. t at token t; the last entry: of the state.
  Vec read_logs(int64_t c, int64_t t) const {
    Vec logs(static_cast<size_t>(t - begin(c)) + 2);
    double sum = 0.0;
    for (int64_t j = t; j >= begin(c); --j) {
      logs[static_cast<size_t>(j - begin(c))] = sum + static_cast<double>(gate(a.i_TN, j));
      sum = reset(j) ? -kInf : sum + log_forget[static_cast<size_t>(j)];
    }
    logs.back() = sum + static_cast<double>(m_before(c));
    return logs;
  }
};

double divisor(double den, double m) {
  return std::max(std::abs(den), std::exp(-m)) + static_cast<double>(kMlstmEps);
}

// exp(log - m) of each.
Vec weights(const Vec& logs, double m) {
  Vec out;
  for (const double x : logs) out.push_back(std::exp(x - m));
  return out;
}

void forward_states(const Head<MlstmArgs>& h) {
  const int64_t width = h.v + 1;
  Vec sum(static_cast<size_t>(h.qk * width));
  if (h.a.initial_state) {
    std::copy_n(h.state(0), sum.size(), sum.begin());
  } else {
    std::fill_n(h.state(0), sum.size(), 0.0F);
    h.m_before(0) = kMlstmNoPast;
  }
  for (int64_t c = 0; c < h.chunks; ++c) {
    const Vec logs = h.write_logs(c);
    h.m_before(c + 1) = static_cast<float>(*std::max_element(logs.begin(), logs.end()));
    const Vec weight = weights(logs, h.m_before(c + 1));
    for (double& x : sum) x *= weight.back();
    for (int64_t t = h.begin(c); t < h.end(c); ++t) {
      for (int64_t k = 0; k < h.qk; ++k) {
        const double key =
            weight[static_cast<size_t>(t - h.begin(c))] * static_cast<double>(h.k(t)[k]);
        add(sum.data() + k * width, bf16(key), h.value(t), h.v);
        sum[static_cast<size_t>(k * width + h.v)] += key;
      }
    }
    float* after = h.state(c + 1);
    for (size_t e = 0; e < sum.size(); ++e) {
      const bool n = static_cast<int64_t>(e) % width == h.v;
      after[e] = static_cast<float>(n ? sum[e] : bf16(sum[e]));
    }
  }
}

void forward_rows(const Head<MlstmArgs>& h, int64_t c) {
  const float* state = h.state(c);
  Vec num(static_cast<size_t>(h.v)), past(static_cast<size_t>(h.v + 1));
  for (int64_t t = h.begin(c); t < h.end(c); ++t) {
    const Vec logs = h.read_logs(c, t);
    const double m = *std::max_element(logs.begin(), logs.end());
    const Vec weight = weights(logs, m);
    std::fill(num.begin(), num.end(), 0.0);
    std::fill(past.begin(), past.end(), 0.0);
    double den = 0.0;
    for (int64_t j = h.begin(c); j <= t; ++j) {
      const double w = weight[static_cast<size_t>(j - h.begin(c))];
      if (w == 0.0) continue;
      const double p = h.scale * dot(h.q(t), h.k(j), h.qk) * w;
      den += p;
      add(num.data(), bf16(p), h.value(j), h.v);
    }
    for (int64_t k = 0; k < h.qk; ++k)
      add(past.data(), h.scale * weight.back() * static_cast<double>(h.q(t)[k]),
          state + k * (h.v + 1), h.v + 1);
    den += past.back();
    const double by = divisor(den, m);
    for (size_t u = 0; u < num.size(); ++u) num[u] = (num[u] + past[u]) / by;
    store(row(h.a.h_TNU, t, h.head), num);
    h.gate(h.a.m_TN, t) = static_cast<float>(m);
    h.gate(h.a.den_TN, t) = static_cast<float>(den);
  }
}

// Backward of one head. Gradients of pairs and through the states are kept apart for the gates.
struct BackwardHead : Head<MlstmBackwardArgs> {
  using Head::Head;
  std::vector<Vec> dstate;  // after each chunk, [K, U + 1]: C rounded
  Vec inverse, gamma;       // of each token

  const float* dh(int64_t t) const { return row(a.dh_TNU, t, head); }

  void normalisers() {
    for (int64_t t = 0; t < tokens; ++t) {
      const double den = gate(a.den_TN, t), m = gate(a.m_TN, t);
      inverse.push_back(1.0 / divisor(den, m));
      const double along = dot(dh(t), row(a.h_TNU, t, head), v) * inverse.back();
      gamma.push_back(std::abs(den) <= std::exp(-m) ? 0.0 : den > 0.0 ? -along : along);
    }
  }
  double read_weight(int64_t c, int64_t t) const {
    return scale * std::exp(read_logs(c, t).back() - static_cast<double>(gate(a.m_TN, t)));
  }

  void states() {
    const int64_t width = v + 1;
    Vec sum(static_cast<size_t>(qk * width));
    dstate.resize(static_cast<size_t>(chunks));
    for (int64_t c = chunks - 1; c >= 0; --c) {
      Vec& stored = dstate[static_cast<size_t>(c)];
      stored = sum;
      for (size_t e = 0; e < stored.size(); ++e)
        if (static_cast<int64_t>(e) % width != v) stored[e] = bf16(stored[e]);
      const Vec carry = weights(write_logs(c), m_before(c + 1));
      for (double& x : sum) x *= carry.back();
      for (int64_t t = begin(c); t < end(c); ++t) {
        const double read = read_weight(c, t);
        for (int64_t k = 0; k < qk; ++k) {
          const double query = read * static_cast<double>(q(t)[k]);
          add(sum.data() + k * width, bf16(query * inverse[static_cast<size_t>(t)]), dh(t), v);
          sum[static_cast<size_t>(k * width + v)] += query * gamma[static_cast<size_t>(t)];
        }
      }
    }
  }

  // dq, dk, dv of a chunk and the parts of its gate gradients.
  struct Chunk {
    std::vector<Vec> dq, dk, dv;
    std::vector<Vec> pairs;  // [t][j] dP P
    Vec reads, writes;       // q dq and k dk through the states
  };

  void add_pairs(int64_t c, Chunk& x) const {
    for (int64_t t = begin(c); t < end(c); ++t) {
      const auto r = static_cast<size_t>(t - begin(c));
      const Vec weight = weights(read_logs(c, t), gate(a.m_TN, t));
      const double by = inverse[static_cast<size_t>(t)];
      for (size_t i = 0; i <= r; ++i) {
        if (weight[i] == 0.0) continue;
        const int64_t j = begin(c) + static_cast<int64_t>(i);
        const double p = scale * dot(q(t), k(j), qk) * weight[i];
        const double dp = dot(dh(t), value(j), v) * by + gamma[static_cast<size_t>(t)];
        const double ds = bf16(dp * scale * weight[i]);
        x.pairs[r][i] = dp * p;
        add(x.dq[r].data(), ds, k(j), qk);
        add(x.dk[i].data(), ds, q(t), qk);
        add(x.dv[i].data(), bf16(p * by), dh(t), v);
      }
    }
  }

  void add_past(int64_t c, Chunk& x) const {
    const Vec write = weights(write_logs(c), m_before(c + 1));
    for (int64_t t = begin(c); t < end(c); ++t) {
      const auto r = static_cast<size_t>(t - begin(c));
      const double read = read_weight(c, t), by = inverse[static_cast<size_t>(t)];
      for (int64_t i = 0; i < qk; ++i) {
        const float* before = state(c) + i * (v + 1);
        const double* after = dstate[static_cast<size_t>(c)].data() + i * (v + 1);
        double dv_after = 0.0;
        for (int64_t u = 0; u < v; ++u) dv_after += static_cast<double>(value(t)[u]) * after[u];
        const double dq = read * (dot(dh(t), before, v) * by +
                                  gamma[static_cast<size_t>(t)] * static_cast<double>(before[v]));
        const double dk = write[r] * (dv_after + after[v]);
        x.reads[r] += static_cast<double>(q(t)[i]) * dq;
        x.writes[r] += static_cast<double>(k(t)[i]) * dk;
        x.dq[r][static_cast<size_t>(i)] += dq;
        x.dk[r][static_cast<size_t>(i)] += dk;
        add(x.dv[r].data(), write[r] * static_cast<double>(k(t)[i]), after, v);
      }
    }
  }

  double carried(int64_t c) const {
    const Vec& after = dstate[static_cast<size_t>(c)];
    double sum = 0.0;
    for (size_t e = 0; e < after.size(); ++e) sum += static_cast<double>(state(c)[e]) * after[e];
    return sum * weights(write_logs(c), m_before(c + 1)).back();
  }

  void gates(int64_t c, const Chunk& x) const {
    const size_t count = x.reads.size();
    Vec later(count);  // of each token: dP P of the queries from the current one on
    Vec across(count), own(count);
    double reads = 0.0;
    for (size_t t = count; t-- > 0;) {
      for (size_t j = 0; j <= t; ++j) later[j] += x.pairs[t][j];
      for (size_t j = 0; j < t; ++j) across[t] += later[j];
      reads += x.reads[t];
      across[t] += reads;
      own[t] = later[t];
    }
    double writes = carried(c);
    for (size_t r = 0; r < count; ++r) {
      const int64_t t = begin(c) + static_cast<int64_t>(r);
      const double through = 1.0 / (1.0 + std::exp(static_cast<double>(gate(a.f_TN, t))));
      gate(a.df_TN, t) = reset(t) ? 0.0F : static_cast<float>((across[r] + writes) * through);
      gate(a.di_TN, t) = static_cast<float>(own[r] + x.writes[r]);
      writes += x.writes[r];
    }
  }

  void chunk(int64_t c) const {
    const auto count = static_cast<size_t>(end(c) - begin(c));
    const auto rows = [&](int64_t width) {
      return std::vector<Vec>(count, Vec(static_cast<size_t>(width)));
    };
    Chunk x{rows(qk), rows(qk), rows(v), rows(static_cast<int64_t>(count)), Vec(count), Vec(count)};
    add_pairs(c, x);
    add_past(c, x);
    gates(c, x);
    for (size_t r = 0; r < count; ++r) {
      const int64_t t = begin(c) + static_cast<int64_t>(r);
      store(row(a.dq_TNK, t, head), x.dq[r]);
      store(row(a.dk_TNK, t, head), x.dk[r]);
      store(row(a.dv_TNU, t, head), x.dv[r]);
    }
  }
};

}  // namespace

void rounded_mlstm(const MlstmArgs& a) {
  for (int64_t head = 0; head < a.q_TNK.dims[1]; ++head) {
    const Head<MlstmArgs> h(a, head);
    forward_states(h);
    for (int64_t c = 0; c < h.chunks; ++c) forward_rows(h, c);
  }
}

void rounded_mlstm_backward(const MlstmBackwardArgs& a) {
  for (int64_t head = 0; head < a.q_TNK.dims[1]; ++head) {
    BackwardHead h(a, head);
    h.normalisers();
    h.states();
    for (int64_t c = 0; c < h.chunks; ++c) h.chunk(c);
  }
}

}  // namespace swax::test
