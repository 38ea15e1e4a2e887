// Goal: attention in a sequence of the models' length, where a few rows are summed in float64.
#include <algorithm>
#include <cmath>
#include <utility>

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

RowStats row_stats(const SwaCase& c, const SwaInputs& in, int64_t t, int64_t head) {
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

Wants sampled_wants(const SwaCase& c, const SwaInputs& in, const Samples& at) {
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

SwaResults sampled(const SwaCase& c, const SwaResults& all, const Samples& at) {
  SwaResults out;
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
    const SwaCase c{.tokens = 16384, .heads = 2, .kv_heads = 2, .size = 128, .window = window};
    SCOPED_TRACE(testing::Message() << "window " << window);
    const SwaInputs in = swa_inputs(c);
    const Wants want = sampled_wants(c, in, at);
    const SwaResults simple = sampled(c, swa_run(c, in, DType::kBF16, SwaForm::kSimple), at);
    const SwaResults chosen = sampled(c, swa_run(c, in, DType::kBF16, SwaForm::kAuto), at);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(tensor_near(std::string("simple bf16 ") + kSwaNames[i], swa_part(simple, i),
                              want.values[i], swa_bf16_bound(c, i)));
      const double error = rel_error(std::span<const float>(swa_part(simple, i)), want.values[i]);
      const double bound = swa_chosen_bound(c, i, error, want.values[i].size());
      EXPECT_TRUE(tensor_near(std::string("chosen bf16 ") + kSwaNames[i], swa_part(chosen, i),
                              want.values[i], bound));
    }
  }
}

}  // namespace
}  // namespace swax::test
