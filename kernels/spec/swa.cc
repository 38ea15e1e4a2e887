#include "kernels/spec/swa.h"

#include <algorithm>
#include <string>

#include "kernels/spec/checks.h"
#include "proto/base/ids.h"

namespace swax {
namespace {

constexpr auto kF32 = DType::kF32;
constexpr auto kStrided = spec::Rows::kStrided;

Status check_heads(const char* op, int64_t heads, int64_t kv_heads, int64_t window) {
  if (kv_heads < 1 || heads % kv_heads != 0) {
    return spec::bad_value(op, "query heads", heads, "a multiple of the key heads");
  }
  if (window < 1) return spec::bad_value(op, "window", window, ">= 1");
  return ok();
}

// Visible (query, key) pairs of one head, borders not counted.
double pairs(int64_t tokens, int64_t window) {
  const int64_t w = std::min(window, tokens);
  return static_cast<double>(w) * static_cast<double>(tokens) -
         static_cast<double>(w) * static_cast<double>(w - 1) / 2.0;
}

}  // namespace

int64_t swa_kept_seen(int64_t tokens, int64_t window) {
  // The first query of a tile sees window - 1 keys before it, the last one all of its own tile.
  return std::min(div_ceil(tokens, kSwaKeptTile), div_ceil(window - 1, kSwaKeptTile) + 1);
}

int64_t swa_kept_tiles(int64_t tokens, int64_t window) {
  const int64_t rows = div_ceil(tokens, kSwaKeptTile), seen = swa_kept_seen(tokens, window);
  return seen * (seen + 1) / 2 + (rows - seen) * seen;
}

int64_t swa_backward_scratch(const Tensor& q_THE) {
  const int64_t tokens = q_THE.dims[0], heads = q_THE.dims[1];
  const int64_t delta = swa_backward_scratch(tokens, heads);
  constexpr int64_t kTunedSize = 128;
  if (q_THE.dtype != DType::kBF16 || q_THE.dims[2] != kTunedSize) return delta;
  constexpr int64_t kTileBytes = kSwaKeptTile * kSwaKeptTile * 2, kF32Bytes = 4;
  const int64_t kept = heads * swa_kept_tiles(tokens, kSwaKeptWindow) * kTileBytes;
  return delta + std::min(kept, kSwaKeptMax) / kF32Bytes;
}

Status validate(const SwaArgs& a) {
  constexpr const char* kOp = "swa";
  const DType act = spec::value_type(a.q_THE);
  const int64_t t = a.q_THE.dims[0];
  const int64_t h = a.q_THE.dims[1];
  const int64_t e = a.q_THE.dims[2];
  const int64_t g = a.k_TGE.dims[1];
  SWAX_TRY(spec::expect(kOp, {{"q_THE", a.q_THE, act, {t, h, e}, kStrided},
                              {"k_TGE", a.k_TGE, act, {t, g, e}, kStrided},
                              {"v_TGE", a.v_TGE, act, {t, g, e}, kStrided},
                              {"o_THE", a.o_THE, act, {t, h, e}, kStrided},
                              {"lse_TH", a.lse_TH, kF32, {t, h}}}));
  SWAX_TRY(spec::expect_optional(kOp, {"doc_start_T", a.doc_start_T, DType::kI32, {t}}));
  return check_heads(kOp, h, g, a.window);
}

Status validate(const SwaBackwardArgs& a) {
  constexpr const char* kOp = "swa_backward";
  const DType act = spec::value_type(a.q_THE);
  const int64_t t = a.q_THE.dims[0];
  const int64_t h = a.q_THE.dims[1];
  const int64_t e = a.q_THE.dims[2];
  const int64_t g = a.k_TGE.dims[1];
  SWAX_TRY(spec::expect(kOp, {{"q_THE", a.q_THE, act, {t, h, e}, kStrided},
                              {"k_TGE", a.k_TGE, act, {t, g, e}, kStrided},
                              {"v_TGE", a.v_TGE, act, {t, g, e}, kStrided},
                              {"o_THE", a.o_THE, act, {t, h, e}, kStrided},
                              {"lse_TH", a.lse_TH, kF32, {t, h}},
                              {"do_THE", a.do_THE, act, {t, h, e}, kStrided},
                              {"dq_THE", a.dq_THE, act, {t, h, e}, kStrided},
                              {"dk_TGE", a.dk_TGE, act, {t, g, e}, kStrided},
                              {"dv_TGE", a.dv_TGE, act, {t, g, e}, kStrided}}));
  SWAX_TRY(spec::expect_optional(kOp, {"doc_start_T", a.doc_start_T, DType::kI32, {t}}));
  if (a.cos_TP.empty() != a.sin_TP.empty()) {
    return invalid_argument(std::string(kOp) + ": cos_TP and sin_TP: both or none");
  }
  if (!a.cos_TP.empty()) {
    if (e % 2 != 0) return spec::bad_value(kOp, "head size", e, "even, to be turned");
    SWAX_TRY(spec::expect(kOp, {{"cos_TP", a.cos_TP, kF32, {t, e / 2}, kStrided},
                                {"sin_TP", a.sin_TP, kF32, {t, e / 2}, kStrided}}));
  }
  if (a.scratch.dtype != kF32 || !a.scratch.contiguous() ||
      a.scratch.elements() < swa_backward_scratch(t, h)) {
    return spec::bad_value(kOp, "scratch elements", a.scratch.elements(),
                           "f32 and at least swa_backward_scratch()");
  }
  return check_heads(kOp, h, g, a.window);
}

Status validate(const SwaDecodeArgs& a) {
  constexpr const char* kOp = "swa_decode";
  const DType act = spec::value_type(a.q_HE);
  const int64_t h = a.q_HE.dims[0];
  const int64_t e = a.q_HE.dims[1];
  const int64_t r = a.k_RGE.dims[0];
  const int64_t g = a.k_RGE.dims[1];
  SWAX_TRY(spec::expect(kOp, {{"q_HE", a.q_HE, act, {h, e}, kStrided},
                              {"k_RGE", a.k_RGE, act, {r, g, e}, kStrided},
                              {"v_RGE", a.v_RGE, act, {r, g, e}, kStrided},
                              {"o_HE", a.o_HE, act, {h, e}, kStrided}}));
  if (a.position < 0) return spec::bad_value(kOp, "position", a.position, ">= 0");
  if (a.doc_start < 0 || a.doc_start > a.position) {
    return spec::bad_value(kOp, "doc_start", a.doc_start, "0..position");
  }
  if (a.window > r) return spec::bad_value(kOp, "window", a.window, "at most the ring");
  return check_heads(kOp, h, g, a.window);
}

// S and P V: 2 FLOPs for each of E products.
double cost(const SwaArgs& a) {
  return 4.0 * static_cast<double>(a.q_THE.dims[1] * a.q_THE.dims[2]) *
         pairs(a.q_THE.dims[0], a.window);
}

// S again, dP, dV, dK, dQ: the executed work, so one product more than the model's own 8.
double cost(const SwaBackwardArgs& a) {
  return 10.0 * static_cast<double>(a.q_THE.dims[1] * a.q_THE.dims[2]) *
         pairs(a.q_THE.dims[0], a.window);
}

}  // namespace swax
