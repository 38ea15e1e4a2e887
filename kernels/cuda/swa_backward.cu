// Arguments of the tuned backward form.
#include "kernels/cuda/swa_backward.cuh"

#include <algorithm>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/swa_tuned.h"
#include "proto/base/ids.h"

namespace swax::cuda {
namespace {

Status params_of(const SwaBackwardArgs& a, SwaBackwardParams* p) {
  constexpr const char* kOp = "swa_backward";
  SWAX_TRY(tile_map(kOp, a.q_THE, kTileRows, &p->q));
  SWAX_TRY(tile_map(kOp, a.k_TGE, kTileRows, &p->k));
  SWAX_TRY(tile_map(kOp, a.v_TGE, kTileRows, &p->v));
  SWAX_TRY(tile_map(kOp, a.do_THE, kTileRows, &p->d_o));
  SWAX_TRY(tile_map(kOp, a.q_THE, kSwaQueryTile, &p->q_small));
  SWAX_TRY(tile_map(kOp, a.do_THE, kSwaQueryTile, &p->do_small));
  SWAX_TRY(tile_map(kOp, a.k_TGE, kSwaQueryTile, &p->k_small));
  p->band = {static_cast<const int32_t*>(a.doc_start_T.data), static_cast<int>(a.q_THE.dims[0]),
             static_cast<int>(std::min(a.window, a.q_THE.dims[0]))};
  p->turn = {a.cos_TP.f32(), a.sin_TP.f32(), a.cos_TP.row_stride, a.sin_TP.row_stride};
  p->lse = a.lse_TH.f32();
  p->delta = a.scratch.f32();
  p->o = static_cast<const __nv_bfloat16*>(a.o_THE.data);
  p->d_o_rows = static_cast<const __nv_bfloat16*>(a.do_THE.data);
  p->dq = static_cast<__nv_bfloat16*>(a.dq_THE.data);
  p->dk = static_cast<__nv_bfloat16*>(a.dk_TGE.data);
  p->dv = static_cast<__nv_bfloat16*>(a.dv_TGE.data);
  p->o_stride = a.o_THE.row_stride;
  p->do_stride = a.do_THE.row_stride;
  p->dq_stride = a.dq_THE.row_stride;
  p->dk_stride = a.dk_TGE.row_stride;
  p->dv_stride = a.dv_TGE.row_stride;
  p->heads = static_cast<int>(a.q_THE.dims[1]);
  p->group = static_cast<int>(a.q_THE.dims[1] / a.k_TGE.dims[1]);
  p->kv_first = 0;
  p->kv_heads = static_cast<int>(a.k_TGE.dims[1]);
  p->scale = a.scale;
  return ok();
}

// Where dS is kept, and in kv_heads how many key heads at a time; not kept when there is no room
// for one.
void keep(const SwaBackwardArgs& a, SwaBackwardParams* p) {
  const int64_t delta = swa_backward_scratch(a.q_THE.dims[0], a.q_THE.dims[1]);
  const int64_t heads = a.k_TGE.dims[1];
  const int64_t tiles = swa_kept_tiles(p->band.tokens, p->band.window);
  const int64_t room = (a.scratch.elements() - delta) / (kKeptBytes / 4) / (tiles * p->group);
  constexpr uintptr_t kAlign = 16;
  if (p->band.window > kSwaKeptWindow) return;
  auto* rows = static_cast<unsigned char*>(a.scratch.data);
  if (room < 1 || reinterpret_cast<uintptr_t>(rows) % kAlign != 0) return;
  // Equal groups, so that the last one fills the device too.
  p->kv_heads = static_cast<int>(div_ceil(heads, div_ceil(heads, std::min(room, heads))));
  p->kept = {rows, tiles, static_cast<int>(swa_kept_seen(p->band.tokens, p->band.window))};
  p->delta = a.scratch.f32() + tiles * p->group * p->kv_heads * (kKeptBytes / 4);
}

Status launch_kept(CUstream_st* stream, SwaBackwardParams p) {
  SWAX_TRY(launch_swa_delta(stream, p));
  const int heads = p.heads / p.group;
  const int at_once = p.kv_heads;
  for (; p.kv_first < heads; p.kv_first += at_once) {
    p.kv_heads = std::min(at_once, heads - p.kv_first);
    SWAX_TRY(launch_swa_dk_dv(stream, p));
    SWAX_TRY(launch_swa_kept_dq(stream, p));
  }
  return ok();
}

// Angles are read two at a time. Absent ones fit.
bool has_pairs(const Tensor& table_TP) {
  constexpr int64_t kAlign = 8;
  return reinterpret_cast<uintptr_t>(table_TP.data) % kAlign == 0 && table_TP.row_stride % 2 == 0;
}

}  // namespace

bool swa_tuned_takes(const SwaBackwardArgs& a) {
  const SwaArgs forward{a.q_THE, a.k_TGE, a.v_TGE, {}, a.o_THE, {}, a.window, a.scale};
  return swa_tuned_takes(forward) && has_tile_map(a.do_THE) && has_tile_map(a.dq_THE) &&
         has_tile_map(a.dk_TGE) && has_tile_map(a.dv_TGE) && has_pairs(a.cos_TP) &&
         has_pairs(a.sin_TP);
}

Status launch_swa_backward_tuned(CUstream_st* stream, const SwaBackwardArgs& a) {
  SwaBackwardParams p{};
  SWAX_TRY(params_of(a, &p));
  keep(a, &p);
  if (p.kept.tiles != nullptr) return launch_kept(stream, p);
  SWAX_TRY(launch_swa_dq(stream, p));
  return launch_swa_dk_dv(stream, p);
}

}  // namespace swax::cuda
