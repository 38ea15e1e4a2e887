// Inputs and runs of sliding-window attention on a device, shared by its tests, and the bounds of
// the simple forms: f32 as in kernels/spec/swa.h, bf16 with one half ulp of bf16 for each rounding
// on the way.
#pragma once

#include <vector>

#include "kernels/cuda/swa.h"
#include "tests/kernels/cuda_device.h"
#include "tests/reference/rope.h"

namespace swax::test {

struct SwaCase {
  int64_t tokens, heads, kv_heads, size, window;
  std::vector<int32_t> reset = {};
  double shift = 0.0;   // added to every logit, through element 0 of q and k
  bool turned = false;  // dq and dk leave turned back
  // Key heads whose dS the scratch can keep at this window: none, or as a trainer has it.
  int64_t kept_heads = -1;
};

struct SwaInputs {
  std::vector<float> q, k, v, d_o;
  std::vector<int32_t> doc_start;
  float scale;
  std::vector<float> cos, sin;  // empty: not turned
};

// Elements of the scratch of a backward pass on q.
int64_t swa_scratch(const SwaCase& c, const Tensor& q_THE);
// Of the tables by which dq (heads) and dk (kv_heads) are turned.
reference::RopeSizes swa_rope_sizes(const SwaCase& c, int64_t heads);
SwaInputs swa_inputs(const SwaCase& c);

struct SwaResults {
  std::vector<float> o, lse, dq, dk, dv;
};
// Parts 0 .. 4: o, lse, dq, dk, dv.
extern const char* const kSwaNames[5];
const std::vector<float>& swa_part(const SwaResults& r, int i);

// Device tensors of one case, filled; outputs poisoned.
struct SwaRig {
  SwaRig(const SwaCase& c, const SwaInputs& in, DType dtype)
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
        cos("cos", DType::kF32, {c.tokens, c.size / 2}),
        sin("sin", DType::kF32, {c.tokens, c.size / 2}),
        scratch("scratch", DType::kF32, {swa_scratch(c, q.tensor())}) {
    Tensor borders;
    if (!in.doc_start.empty()) {
      doc.write_bytes(in.doc_start.data(), c.tokens * 4);
      borders = doc.tensor();
    }
    forward = {q.tensor(), k.tensor(),   v.tensor(), borders,
               o.tensor(), lse.tensor(), c.window,   in.scale};
    backward = {q.tensor(),       k.tensor(),   v.tensor(),  borders,     o.tensor(),
                lse.tensor(),     d_o.tensor(), dq.tensor(), dk.tensor(), dv.tensor(),
                scratch.tensor(), c.window,     in.scale,    {},          {}};
    if (in.cos.empty()) return;
    cos.write_bytes(in.cos.data(), cos.tensor().bytes());
    sin.write_bytes(in.sin.data(), sin.tensor().bytes());
    backward.cos_TP = cos.tensor();
    backward.sin_TP = sin.tensor();
  }
  void poison() {
    for (DeviceTensor* t : {&o, &lse, &dq, &dk, &dv, &scratch}) t->poison();
  }
  void run(cuda::SwaForm form) {
    const Status there = cuda::launch_swa(nullptr, forward, form);
    EXPECT_TRUE(there.ok()) << there.to_string();
    const Status back = cuda::launch_swa_backward(nullptr, backward, form);
    EXPECT_TRUE(back.ok()) << back.to_string();
    sync_device();
  }
  SwaResults results() const {
    return {o.values(), lse.values(), dq.values(), dk.values(), dv.values()};
  }
  DeviceTensor q, k, v, d_o, doc, o, lse, dq, dk, dv, cos, sin, scratch;
  SwaArgs forward;
  SwaBackwardArgs backward;
};

SwaResults swa_run(const SwaCase& c, const SwaInputs& in, DType dtype, cuda::SwaForm form);

// Bounds of part i.
double swa_f32_bound(const SwaCase& c, int i);
double swa_bf16_bound(const SwaCase& c, int i);
// Of the form chosen for bf16, from the error of the simple form in so many elements: the 2x rule.
// lse, which no form rounds to bf16, keeps the f32 bound instead where the 2x rule says nothing: on
// few elements the ratio of two errors is luck (for two equally good forms, a ratio of norms of
// Gaussian vectors, it passes 2 with a probability below 1e-6 from 52 elements on: F(n, n) > 4),
// and in a shifted score the accumulator of a matrix unit truncates: each addition loses up to an
// ulp of the shift, always downwards, where those of the simple form lose half of it and cancel.
double swa_chosen_bound(const SwaCase& c, int i, double simple_error, size_t elements);

}  // namespace swax::test
