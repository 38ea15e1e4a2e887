// Memory and order of the kernels of the tuned mLSTM form.
#include "kernels/cuda/mlstm_tuned.h"

#include <cmath>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/hopper_tile.cuh"
#include "kernels/spec/mlstm_scratch.h"
#include "proto/base/ids.h"

namespace swax::cuda {
namespace {

// Hands out parts of the scratch, each aligned to 64 bytes.
class Parts {
 public:
  explicit Parts(float* base) : base_(base) {}
  template <typename T = float>
  T* take(int64_t elements) {
    constexpr int64_t kAlign = 16;
    float* part = base_ + used_;
    used_ += round_up(elements * static_cast<int64_t>(sizeof(T) / sizeof(float)), kAlign);
    return reinterpret_cast<T*>(part);
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

struct Shape {
  int64_t tokens, heads, chunks;
};

void take_gates(const Shape& s, Parts* parts, MlstmTuned* x) {
  const int64_t each = s.heads * s.tokens;
  x->prefix = parts->take<double>(each);
  x->column = parts->take<double>(each);
  x->column_max = parts->take<double>(each);
  x->start = parts->take<int>(each);
  x->row_log = parts->take<MlstmLog>(each);
  x->column_log = parts->take<MlstmLog>(each);
  x->read_weight = parts->take(each);
  x->write_weight = parts->take(each);
  x->sum = parts->take<double>(s.heads * s.chunks);
  x->top = parts->take<double>(s.heads * s.chunks);
  x->carry_weight = parts->take(s.heads * s.chunks);
  x->dn = parts->take(s.chunks * s.heads * kMlstmQk);
}

void take_backward(const Shape& s, Parts* parts, MlstmTuned* x) {
  const int64_t each = s.heads * s.tokens;
  x->inverse = parts->take(each);
  x->gamma = parts->take(each);
  x->query_pairs = parts->take<double>(2 * each);
  x->key_pairs = parts->take<double>(kMlstmPairParts * each);
  x->query_past = parts->take(each);
  x->key_past = parts->take(each);
  x->carried = parts->take(s.heads * s.chunks * kMlstmCarriedParts);
  const auto halves = [&](int64_t elements) {
    return reinterpret_cast<__nv_bfloat16*>(parts->take(elements / 2));
  };
  const int64_t places = s.chunks * s.heads;
  x->dstates = halves(places * kMlstmQk * kMlstmV);
  x->pairs = halves(places * kMlstmTiles * kTileRows * kTileColumns);
  x->pair_slopes = halves(places * kMlstmTiles * kTileRows * kTileColumns);
}

template <typename Args>
Shape shape_of(const Args& a) {
  return {a.q_TNK.dims[0], a.q_TNK.dims[1], mlstm_chunks(a.q_TNK.dims[0], a.chunk)};
}

template <typename Args>
MlstmTuned view_of(const Args& a, const Shape& s) {
  MlstmTuned x{};
  x.tokens = static_cast<int>(s.tokens);
  x.heads = static_cast<int>(s.heads);
  x.chunks = static_cast<int>(s.chunks);
  x.scale = 1.0F / std::sqrt(static_cast<float>(kMlstmQk));
  x.i = static_cast<const float*>(a.i_TN.data);
  x.f = static_cast<const float*>(a.f_TN.data);
  x.reset = static_cast<const uint8_t*>(a.reset_T.data);
  x.m_state = static_cast<float*>(a.m_state_CN.data);
  x.m = static_cast<float*>(a.m_TN.data);
  x.den = static_cast<float*>(a.den_TN.data);
  x.states = static_cast<__nv_bfloat16*>(a.states_CNKU1.data);
  x.n = reinterpret_cast<float*>(x.states + (s.chunks + 1) * s.heads * kMlstmQk * kMlstmV);
  return x;
}

MlstmRows rows_of(const Tensor& t) { return {static_cast<__nv_bfloat16*>(t.data), t.row_stride}; }

template <typename Args>
bool takes(const Args& a, int64_t scratch) {
  constexpr int64_t kRowsMax = int64_t{1} << 30;  // token and state rows are int
  const Shape s = shape_of(a);
  return a.q_TNK.dtype == DType::kBF16 && a.states_CNKU1.dtype == DType::kBF16 &&
         a.q_TNK.dims[2] == kMlstmQk && a.v_TNU.dims[2] == kMlstmV && a.chunk == kMlstmChunk &&
         (s.chunks + 2) * s.heads * kMlstmTiles * kTileRows < kRowsMax && has_tile_map(a.q_TNK) &&
         has_tile_map(a.k_TNK) && has_tile_map(a.v_TNU) && has_tile_map(a.h_TNU) &&
         reinterpret_cast<uintptr_t>(a.states_CNKU1.data) % 16 == 0 &&
         a.scratch.elements() >= scratch;
}

}  // namespace

bool mlstm_tuned_takes(const MlstmArgs& a) {
  MlstmTuned x{};
  Parts parts(nullptr);
  take_gates(shape_of(a), &parts, &x);
  return takes(a, parts.used());
}

bool mlstm_tuned_takes(const MlstmBackwardArgs& a) {
  MlstmTuned x{};
  Parts parts(nullptr);
  take_gates(shape_of(a), &parts, &x);
  take_backward(shape_of(a), &parts, &x);
  return takes(a, parts.used()) && has_tile_map(a.dh_TNU) && has_tile_map(a.dq_TNK) &&
         has_tile_map(a.dk_TNK) && has_tile_map(a.dv_TNU);
}

Status launch_mlstm_tuned(CUstream_st* stream, const MlstmArgs& a) {
  const Shape s = shape_of(a);
  MlstmTuned x = view_of(a, s);
  Parts parts(static_cast<float*>(a.scratch.data));
  take_gates(s, &parts, &x);
  // The weighted keys lie where h comes later.
  SWAX_TRY(launch_mlstm_gates(stream, x, rows_of(a.k_TNK), rows_of(a.h_TNU), a.initial_state));
  SWAX_TRY(launch_mlstm_states(stream, x, a.h_TNU, a.v_TNU, false, a.initial_state));
  return launch_mlstm_values(stream, x, a.q_TNK, a.k_TNK, a.v_TNU, a.h_TNU);
}

Status launch_mlstm_backward_tuned(CUstream_st* stream, const MlstmBackwardArgs& a) {
  const Shape s = shape_of(a);
  MlstmTuned x = view_of(a, s);
  Parts parts(static_cast<float*>(a.scratch.data));
  take_gates(s, &parts, &x);
  take_backward(s, &parts, &x);
  x.di = static_cast<float*>(a.di_TN.data);
  x.df = static_cast<float*>(a.df_TN.data);
  // The weighted queries lie where dv comes later.
  SWAX_TRY(launch_mlstm_gates_backward(stream, x, rows_of(a.q_TNK), rows_of(a.h_TNU),
                                       rows_of(a.dh_TNU), rows_of(a.dv_TNU)));
  SWAX_TRY(launch_mlstm_states(stream, x, a.dv_TNU, a.dh_TNU, true, false));
  SWAX_TRY(launch_mlstm_pairs(stream, x, a.q_TNK, a.k_TNK, a.dh_TNU, a.v_TNU));
  SWAX_TRY(launch_mlstm_gradients(stream, x, a));
  return launch_mlstm_gate_gradients(stream, x);
}

}  // namespace swax::cuda
