// Backward of RMSNorm with the gates that read it, at width 2048 with up to 8 gates: x, dy and the
// residual gradient are read once, the gates' share of dy stays in registers in f32, y is formed
// again. A block has whole rows, four columns a thread with the sums of all their weight gradients
// in registers. Its run of tokens goes through in groups of four, the next two on their way into
// shared memory; the sums of the rows need one barrier a group. The blocks' sums lie in the
// stream's workspace and are folded over blocks, 16 runs of blocks in order. Other shapes take the
// two ops.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/kernel_launch.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_gates_backward.cuh"

namespace swax::cuda {
namespace {

__global__ void __launch_bounds__(kBlock, 1) norm_gates_backward_kernel(NormGatesBackward a) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Groups groups(a.tokens);
  if (threadIdx.x == 0) {
    for (int k = 0; k < kStages; ++k) barrier_init(s.full + k, 1);
    barrier_init_fence();
  }
  __syncthreads();
  for (int k = 0; warp == 0 && k < kStages; ++k) fetch(a, s, groups, k);
  form_slopes(a, s, groups);
  Columns c(a);
  __syncthreads();
  int stage = 0;
  uint32_t phase = 0;
  for (int k = 0; k < groups.count; ++k) {
    barrier_wait(s.full + stage, phase);
    const int rows = groups.rows(k);
    for (int r = rows; r < kRows; ++r) {  // what the thread itself reads below
      for (auto& array : s.rows[stage]) {
        *reinterpret_cast<uint2*>(array[r] + c.col) = make_uint2(0, 0);
      }
    }
    const float* d = s.d[0] + k * kRows;
    const float* rstd = s.rstd + k * kRows;
    const bf16* x = s.rows[stage][kX][0] + c.col;
    float dy[kRows][kCols];
    float y[kRows][kCols];
    float sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) get4(s.rows[stage][kDy][r] + c.col, dy[r]);
    c.add_gates(d, dy);
    c.form_rows(x, rstd, dy, y, sum);
    const float mine = rows_sum(sum);
    if (lane < kRows) s.sums[k & 1][warp][lane] = mine;
    __syncthreads();
    // All warps are through with the group before.
    if (warp == 0 && k > 0) fetch(a, s, groups, k - 1 + kStages);
    const float mean = over_warps(s.sums[k & 1][0]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      bf16* dx = r < rows ? a.dx + (groups.begin + k * kRows + r) * a.dx_stride : nullptr;
      c.write(x + r * kDim, s.rows[stage][kOld][r] + c.col, rstd[r],
              __shfl_sync(kAllLanes, mean, r), dy[r], dx);
    }
    c.add_weights(d, y);
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  c.store(a);
  if (warp >= 2 * a.heads) return;
  float bias = 0.0F;
  for (int k = lane; k < kBlockTokens; k += kWarp) bias += s.d[warp][k];
  bias = lanes_sum(bias);
  if (lane == 0) a.bias_partial[static_cast<int64_t>(blockIdx.x) * 2 * a.heads + warp] = bias;
}

// 32 columns of the sums a block.
constexpr int kFoldCols = 32;
constexpr int kFoldRuns = 16;

__global__ void __launch_bounds__(kFoldCols* kFoldRuns)
    norm_gates_fold(NormGatesBackward a, int blocks) {
  __shared__ float part[kFoldRuns][kFoldCols];
  const int at = static_cast<int>(threadIdx.x) % kFoldCols;
  const int run = static_cast<int>(threadIdx.x) / kFoldCols;
  const int64_t width = static_cast<int64_t>(1 + 2 * a.heads) * kDim;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kFoldCols + at;
  const int share = (blocks + kFoldRuns - 1) / kFoldRuns;
  const int end = min((run + 1) * share, blocks);
  wait_for_previous();
  float sum = 0.0F;
#pragma unroll 12
  for (int b = run * share; b < end; ++b) sum += __ldcg(a.partial + b * width + col);
  part[run][at] = sum;
  __syncthreads();
  if (run == 0) {
#pragma unroll
    for (int k = 1; k < kFoldRuns; ++k) sum += part[k][at];
    const int gate = static_cast<int>(col / kDim) - 1;
    float* out = gate < 0         ? a.dw
                 : gate < a.heads ? a.dwi + gate * a.dwi_stride
                                  : a.dwf + (gate - a.heads) * a.dwf_stride;
    out[col % kDim] = sum;
  }
  const int gate = static_cast<int>(blockIdx.x);
  if (run == 1 && gate < 2 * a.heads) {
    float bias = 0.0F;
    for (int b = at; b < blocks; b += kWarp)
      bias += __ldcg(a.bias_partial + b * 2 * a.heads + gate);
    bias = lanes_sum(bias);
    if (at == 0) (gate < a.heads ? a.dbi[gate] : a.dbf[gate - a.heads]) = bias;
  }
}

// One wave, more where a block would have more tokens than it has room for.
int64_t blocks_of(int64_t tokens) {
  const int64_t groups = div_ceil(tokens, int64_t{kRows});
  return std::max(std::min(groups, kOneWave), div_ceil(tokens, int64_t{kBlockTokens}));
}
int64_t workspace_floats(int64_t blocks, int64_t gates) {
  return blocks * ((1 + gates) * kDim + gates);
}

bool fits(const RmsNormGatesBackwardArgs& a) {
  const int64_t gates = 2 * a.gates.wi_ND.dims[0];
  const int64_t bytes =
      workspace_floats(blocks_of(a.norm.x_TD.dims[0]), gates) * static_cast<int64_t>(sizeof(float));
  const bool narrow = a.norm.x_TD.dtype == DType::kBF16 && a.norm.w_D.dtype == DType::kBF16 &&
                      a.gates.wi_ND.dtype == DType::kBF16;
  return narrow && a.norm.accumulate_dx && a.norm.x_TD.dims[1] == kDim && gates <= kGates &&
         bytes <= kStreamWorkspace && a.norm.dx_TD.data != a.norm.dy_TD.data &&
         vector_rows(a.norm.x_TD) && vector_rows(a.norm.dy_TD) && vector_rows(a.norm.dx_TD) &&
         vector_rows(a.norm.w_D) && vector_rows(a.gates.wi_ND) && vector_rows(a.gates.wf_ND);
}

NormGatesBackward arguments(const RmsNormGatesBackwardArgs& g, float* workspace, int64_t blocks) {
  NormGatesBackward a;
  a.x = data_of<bf16>(g.norm.x_TD);
  a.w = data_of<bf16>(g.norm.w_D);
  a.dy = data_of<bf16>(g.norm.dy_TD);
  a.wi = data_of<bf16>(g.gates.wi_ND);
  a.wf = data_of<bf16>(g.gates.wf_ND);
  a.rstd = g.norm.rstd_T.f32();
  a.i = g.gates.i_TN.f32();
  a.f = g.gates.f_TN.f32();
  a.di = g.gates.di_TN.f32();
  a.df = g.gates.df_TN.f32();
  a.dx = data_of<bf16>(g.norm.dx_TD);
  a.dw = g.norm.dw_D.f32();
  a.dwi = g.gates.dwi_ND.f32();
  a.dwf = g.gates.dwf_ND.f32();
  a.dbi = g.gates.dbi_N.f32();
  a.dbf = g.gates.dbf_N.f32();
  a.tokens = g.norm.x_TD.dims[0];
  a.heads = static_cast<int>(g.gates.wi_ND.dims[0]);
  a.partial = workspace;
  a.bias_partial = workspace + blocks * (1 + 2 * a.heads) * kDim;
  a.x_stride = row_stride(g.norm.x_TD);
  a.dy_stride = row_stride(g.norm.dy_TD);
  a.dx_stride = row_stride(g.norm.dx_TD);
  a.wi_stride = row_stride(g.gates.wi_ND);
  a.wf_stride = row_stride(g.gates.wf_ND);
  a.dwi_stride = row_stride(g.gates.dwi_ND);
  a.dwf_stride = row_stride(g.gates.dwf_ND);
  a.cap = g.gates.cap;
  return a;
}

}  // namespace

Status CudaBackend::rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) {
  SWAX_TRY(validate(a));
  if (!fits(a)) {
    SWAX_TRY(mlstm_gates_backward(s, a.gates));
    return rms_norm_backward(s, a.norm);
  }
  SWAX_TRY(need_data(
      "rms_norm_gates_backward",
      {&a.norm.x_TD, &a.norm.w_D, &a.norm.rstd_T, &a.norm.dy_TD, &a.norm.dx_TD, &a.norm.dw_D,
       &a.gates.wi_ND, &a.gates.wf_ND, &a.gates.i_TN, &a.gates.f_TN, &a.gates.di_TN, &a.gates.df_TN,
       &a.gates.dwi_ND, &a.gates.dwf_ND, &a.gates.dbi_N, &a.gates.dbf_N}));
  const int64_t blocks = blocks_of(a.norm.x_TD.dims[0]);
  auto* workspace = static_cast<float*>(static_cast<CudaStream&>(s).workspace());
  const NormGatesBackward args = arguments(a, workspace, blocks);
  Launch l;
  l.grid = dim3(static_cast<unsigned>(blocks));
  l.block = dim3(kBlock);
  l.shared_bytes = sizeof(Shared);
  l.stream = raw(s);
  SWAX_TRY(launch("rms_norm_gates_backward", l, norm_gates_backward_kernel, args));
  const auto folds = static_cast<unsigned>((1 + 2 * args.heads) * kDim / kFoldCols);
  launch_early(raw(s), norm_gates_fold, folds, kFoldCols * kFoldRuns, args,
               static_cast<int>(blocks));
  return last_launch("rms_norm_gates_backward fold");
}

}  // namespace swax::cuda
