#include "tests/kernels/cuda_swa_case.h"

#include <algorithm>
#include <cmath>

#include "tests/reference/attention.h"
#include "tests/support/tensor_check.h"

namespace swax::test {
namespace {

void set_first(std::vector<float>& x, int64_t size, double value) {
  for (size_t i = 0; i < x.size(); i += static_cast<size_t>(size)) {
    x[i] = bf16_round(static_cast<float>(value));
  }
}

// A score is an exponent: its rounding counts absolutely, so the bound grows with it; a gradient
// also grows with the element of q or k that carries the shift, against others of order 1.
double condition(const SwaCase& c, int i) {
  if (c.shift == 0.0) return 1.0;
  const double root = std::sqrt(std::abs(c.shift) * std::sqrt(static_cast<double>(c.size)));
  const bool gradient = i == 2 || i == 3;
  return (1.0 + std::abs(c.shift)) * (gradient ? 1.0 + root : 1.0);
}

}  // namespace

int64_t swa_scratch(const SwaCase& c, const Tensor& q_THE) {
  if (c.kept_heads < 0) return swa_backward_scratch(q_THE);
  const int64_t tiles = c.kept_heads * (c.heads / c.kv_heads) * swa_kept_tiles(c.tokens, c.window);
  return swa_backward_scratch(c.tokens, c.heads) + tiles * kSwaKeptTile * kSwaKeptTile / 2;
}

reference::RopeSizes swa_rope_sizes(const SwaCase& c, int64_t heads) {
  return {.tokens = c.tokens, .heads = heads, .dim = c.size, .first_position = 900};
}

SwaInputs swa_inputs(const SwaCase& c) {
  const int64_t q = c.tokens * c.heads * c.size;
  const int64_t kv = c.tokens * c.kv_heads * c.size;
  const Draw draw{.bf16 = true};
  SwaInputs in{random_normal(1, "q", q, draw),
               random_normal(1, "k", kv, draw),
               random_normal(1, "v", kv, draw),
               random_normal(1, "do", q, draw),
               c.reset.empty() ? std::vector<int32_t>{} : reference::first_tokens(c.reset),
               static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.size))),
               {},
               {}};
  if (c.turned) {
    const reference::RopeTables tables = reference::rope_tables(swa_rope_sizes(c, 1));
    for (const double x : tables.cos_TK) in.cos.push_back(static_cast<float>(x));
    for (const double x : tables.sin_TK) in.sin.push_back(static_cast<float>(x));
  }
  if (c.shift != 0.0) {
    const double root = std::sqrt(std::abs(c.shift) * std::sqrt(static_cast<double>(c.size)));
    set_first(in.q, c.size, root);
    set_first(in.k, c.size, c.shift < 0.0 ? -root : root);
  }
  return in;
}

const char* const kSwaNames[5] = {"o", "lse", "dq", "dk", "dv"};
const std::vector<float>& swa_part(const SwaResults& r, int i) {
  const std::vector<float>* const all[] = {&r.o, &r.lse, &r.dq, &r.dk, &r.dv};
  return *all[i];
}

SwaResults swa_run(const SwaCase& c, const SwaInputs& in, DType dtype, cuda::SwaForm form) {
  SwaRig rig(c, in, dtype);
  rig.run(form);
  return rig.results();
}

double swa_f32_bound(const SwaCase& c, int i) {
  const int64_t sum = std::min(c.window, c.tokens) + c.size;
  const double turn = c.turned && (i == 2 || i == 3) ? rounding_bound(2, 2) : 0.0;
  return (rounding_bound(sum, i < 2 ? 4 : 8) + turn) * condition(c, i);
}
// Roundings to bf16 on the way, each of at most 2^-8: o: P and o; dq, dk: o in delta, dS, the
// result; dv: P and the result; lse has none.
double swa_bf16_bound(const SwaCase& c, int i) {
  const double roundings[] = {2, 0, 3, 3, 2};
  const double root = std::sqrt(std::abs(c.shift) * std::sqrt(static_cast<double>(c.size)));
  const double carried = i == 2 || i == 3 ? 1.0 + root : 1.0;
  return swa_f32_bound(c, i) + roundings[i] * carried / 256.0;
}
double swa_chosen_bound(const SwaCase& c, int i, double simple_error, size_t elements) {
  const bool f32 = i == 1 && (elements < 52 || c.shift != 0.0);
  return f32 ? swa_f32_bound(c, i) : tuned_bound(simple_error);
}

}  // namespace swax::test
