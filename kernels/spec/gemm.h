// c_MN = op(a) op(b) (+ c_MN when accumulate, + addend_MN when there is one). op(a) is [M,Kd],
// op(b) is [Kd,N]; trans_a: a is stored [Kd,M]; trans_b: b is stored [N,Kd]. Inputs f32 (CPU) or
// bf16 (CUDA), c f32 or bf16; fp32 accumulation in an order that depends on the shape alone. Rows
// may be strided (row_stride); c aliases no input. The addend has the dtype and row stride of c,
// excludes accumulate and gives the bits of copying it to c and accumulating there. A linear layer
// y = x W^T is trans_b with W [O,I]; dx = dy W has no transposes; dW = dy^T x is trans_a. CPU bound
// (derived): |error| norm-wise <= 0.5 * 2^-24 * sqrt(Kd) * c with c = 1 (2 with accumulate or
// addend). accumulate may add in another order than a product followed by `add` (several stretches
// of Kd): it is deterministic, not equal in bits.
#pragma once

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

struct GemmArgs {
  Tensor a;
  Tensor b;
  Tensor c;
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
  Tensor addend = {};  // or empty
};
Status validate(const GemmArgs& a);
double cost(const GemmArgs& a);  // FLOPs: 2 M N Kd

}  // namespace swax
