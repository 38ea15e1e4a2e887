#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "proto/base/ids.h"

namespace swax::cpu {

Status CpuBackend::rope(Stream&, const RopeArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("rope", {&a.x_THE, &a.cos_TP, &a.sin_TP}));
  constexpr int64_t kTokenBlock = 64;
  const int64_t tokens = a.x_THE.dims[0];
  const int64_t heads = a.x_THE.dims[1];
  const int64_t pairs = a.x_THE.dims[2] / 2;
  const F8 sign = splat(a.inverse ? -1.0F : 1.0F);
  pool_.run(div_ceil(tokens, kTokenBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kTokenBlock);
    for (int64_t t = piece * kTokenBlock; t < end; ++t) {
      const float* cos = a.cos_TP.f32() + t * a.cos_TP.row_stride;
      const float* sin = a.sin_TP.f32() + t * a.sin_TP.row_stride;
      for (int64_t h = 0; h < heads; ++h) {
        float* low = a.x_THE.f32() + t * a.x_THE.row_stride + h * 2 * pairs;
        float* high = low + pairs;
        for_lanes(pairs, [&](int64_t i, int64_t lanes) {
          const F8 c = load(cos + i, lanes);
          const F8 s = sign * load(sin + i, lanes);
          const F8 x = load(low + i, lanes);
          const F8 y = load(high + i, lanes);
          store(low + i, x * c - y * s, lanes);
          store(high + i, x * s + y * c, lanes);
        });
      }
    }
  });
  return ok();
}

}  // namespace swax::cpu
