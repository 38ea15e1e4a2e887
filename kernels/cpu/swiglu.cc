#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {
constexpr int64_t kTokenBlock = 32;
}  // namespace

Status CpuBackend::swiglu(Stream&, const SwigluArgs& x) {
  SWAX_TRY(validate(x));
  SWAX_TRY(need_data("swiglu", {&x.a_TF, &x.b_TF, &x.s_TF}));
  const int64_t tokens = x.a_TF.dims[0];
  pool_.run(div_ceil(tokens, kTokenBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kTokenBlock);
    for (int64_t t = piece * kTokenBlock; t < end; ++t) {
      const float* a = x.a_TF.f32() + t * x.a_TF.row_stride;
      const float* b = x.b_TF.f32() + t * x.b_TF.row_stride;
      float* s = x.s_TF.f32() + t * x.s_TF.row_stride;
      for_lanes(x.a_TF.dims[1], [&](int64_t i, int64_t lanes) {
        const F8 va = load(a + i, lanes);
        store(s + i, va * sigmoid8(va) * load(b + i, lanes), lanes);
      });
    }
  });
  return ok();
}

Status CpuBackend::swiglu_backward(Stream&, const SwigluBackwardArgs& x) {
  SWAX_TRY(validate(x));
  SWAX_TRY(need_data("swiglu_backward", {&x.a_TF, &x.b_TF, &x.ds_TF, &x.da_TF, &x.db_TF}));
  const int64_t tokens = x.a_TF.dims[0];
  pool_.run(div_ceil(tokens, kTokenBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kTokenBlock);
    for (int64_t t = piece * kTokenBlock; t < end; ++t) {
      const float* a = x.a_TF.f32() + t * x.a_TF.row_stride;
      const float* b = x.b_TF.f32() + t * x.b_TF.row_stride;
      const float* ds = x.ds_TF.f32() + t * x.ds_TF.row_stride;
      float* da = x.da_TF.f32() + t * x.da_TF.row_stride;
      float* db = x.db_TF.f32() + t * x.db_TF.row_stride;
      const F8 one = splat(1.0F);
      for_lanes(x.a_TF.dims[1], [&](int64_t i, int64_t lanes) {
        const F8 va = load(a + i, lanes);
        const F8 vds = load(ds + i, lanes);
        const F8 vb = load(b + i, lanes);
        const F8 sig = sigmoid8(va);
        const F8 slope = sig * fma(va, one - sig, one);
        store(da + i, vds * vb * slope, lanes);
        store(db + i, vds * va * sig, lanes);
      });
    }
  });
  return ok();
}

}  // namespace swax::cpu
