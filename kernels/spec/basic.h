// Element-wise operations, copies and the tensor digest. See kernels/README.md for the conventions
// of all specs: every argument struct names its shapes; validate() checks them on the host; nothing
// is allocated by a call.
#pragma once

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

// x[i] = value. f32 contiguous.
struct FillArgs {
  Tensor x;
  float value = 0.0F;
};
// out[i] = a[i] + b[i]. f32 contiguous; out may be a or b, else it lies apart. This is the one
// addition of the slot sum.
struct AddArgs {
  Tensor a;
  Tensor b;
  Tensor out;
};
// to[i] = from[i] in another dtype (f32 <-> bf16, round to nearest even).
struct CastArgs {
  Tensor from;
  Tensor to;
};
// sums[0..1] (i64 [2], read as unsigned) += sum over i of digest_mix(k, name_hash, first_element +
// i, bits of x[i]) modulo 2^64. x f32. Source: proto/base/hash.h. Integer sums: any order gives the
// same bits.
struct DigestArgs {
  Tensor x;
  uint64_t name_hash = 0;
  uint64_t first_element = 0;
  Tensor sums;
};

Status validate(const FillArgs& a);
Status validate(const AddArgs& a);
Status validate(const CastArgs& a);
Status validate(const DigestArgs& a);

}  // namespace swax
