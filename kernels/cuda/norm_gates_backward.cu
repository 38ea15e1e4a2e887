// Backward of RMSNorm with the gates that read it, at width 2048 with up to 8 gates and at 4096
// with up to 16: x, dy and the residual gradient are read once, y is formed again, nothing between
// is stored. A cluster of two or four blocks has whole rows of its share of the groups of eight
// tokens, 1024 columns a block, with the sums of all their weight gradients in registers. A group
// goes through a ring in shared memory, which four warps feed; eight with 128 columns each, which
// takes 6 % less time than sixteen with 64 at width 2048 and 9 % less at 4096, add up its y dy,
// which the blocks exchange, and meanwhile end the group before.
//
// Both products with the gates' gradients d, W^T d and d y, run on tensor cores: W and y are bf16,
// d goes in as three bf16 summands that hold it exactly. A group's share of a weight gradient is
// added to the others in f32, as one long chain of products would cut off at each. Relative errors
// of weight gradients in an emulation, 512 tokens: 2e-7, as a chain of fmaf in f32 has; with two
// summands 1e-5, with one chain of products 2e-6.
//
// The sums of the shares (runs) lie in the stream's workspace and are folded, 16 parts of the runs
// in order. Other shapes take the two ops.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/hopper_ring.cuh"
#include "kernels/cuda/kernel_launch.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_gates_backward.cuh"

namespace swax::cuda {
namespace {

// Of a thread, from those that each has at the start.
constexpr int kRegisters = 168;
constexpr int kFeederRegisters = 40;
constexpr int kColumnsRegisters = 232;

template <int kCluster, int kGates>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kBlock, 1)
    norm_gates_backward_kernel(const __grid_constant__ NormGatesBackward a) {
  using S = Shared<kCluster, kGates>;
  static_assert(sizeof(S) <= kSharedMax);
  S& s = shared_block<S>();
  let_next_start();
  if (threadIdx.x == 0) s.init();
  __syncthreads();
  cluster_arrive();
  if (threadIdx.x >= kWarps * kWarp) {
    registers_shrink<kFeederRegisters>();
    Feeder<kCluster, kGates> feeder(a, s);
    feeder.start();
    cluster_wait();
    feeder.feed();
  } else {
    registers_grow<kColumnsRegisters>();
    Columns<kCluster, kGates> columns(a, s);
    columns.start();
    cluster_wait();
    columns.compute();
    columns.store();
  }
  // No block ends while others may still send to it.
  cluster_arrive();
  cluster_wait();
}

// 128 columns of the sums a block, four a thread.
constexpr int kFoldRuns = 16;
constexpr int kFoldCols = kWarp * 4;

__global__ void __launch_bounds__(kWarp* kFoldRuns)
    norm_gates_fold(const __grid_constant__ NormGatesBackward a, int dim) {
  __shared__ float4 part[kFoldRuns][kWarp];
  const int at = static_cast<int>(threadIdx.x) % kWarp;
  const int run = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t width = static_cast<int64_t>(1 + 2 * a.heads) * dim;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kFoldCols + at * 4;
  const int share = (a.runs + kFoldRuns - 1) / kFoldRuns;
  const int end = min((run + 1) * share, a.runs);
  const auto add = [](float4& sum, const float4& x) {
    sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
  };
  wait_for_previous();
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll 4
  for (int b = run * share; b < end; ++b) {
    add(sum, __ldcg(reinterpret_cast<const float4*>(a.partial + b * width + col)));
  }
  part[run][at] = sum;
  __syncthreads();
  if (run == 0) {
#pragma unroll
    for (int k = 1; k < kFoldRuns; ++k) add(sum, part[k][at]);
    const int gate = static_cast<int>(col / dim) - 1;
    float* out = gate < 0         ? a.dw
                 : gate < a.heads ? a.dwi + gate * a.dwi_stride
                                  : a.dwf + (gate - a.heads) * a.dwf_stride;
    out += col % dim;
    out[0] = sum.x;
    out[1] = sum.y;
    out[2] = sum.z;
    out[3] = sum.w;
  }
  const int gate = static_cast<int>(blockIdx.x);
  if (run == 1 && gate < 2 * a.heads) {
    float bias = 0.0F;
    for (int b = at; b < a.runs; b += kWarp)
      bias += __ldcg(a.bias_partial + b * 2 * a.heads + gate);
    bias = lanes_sum(bias);
    if (at == 0) (gate < a.heads ? a.dbi[gate] : a.dbf[gate - a.heads]) = bias;
  }
}

// Shares of the groups: clusters that a device runs at once. In pairs all multiprocessors of an
// H200; in fours some are left over where those of one part of it are no multiple of four (30 seen;
// 32 runs took two waves).
template <int kCluster>
constexpr int64_t kRuns = kCluster == 2 ? 66 : 30;

bool fits(const RmsNormGatesBackwardArgs& a) {
  const bool narrow = a.norm.x_TD.dtype == DType::kBF16 && a.norm.w_D.dtype == DType::kBF16 &&
                      a.gates.wi_ND.dtype == DType::kBF16;
  return narrow && a.norm.accumulate_dx && a.norm.dx_TD.data != a.norm.dy_TD.data &&
         vector_rows(a.norm.x_TD) && vector_rows(a.norm.dy_TD) && vector_rows(a.norm.dx_TD) &&
         vector_rows(a.norm.w_D) && vector_rows(a.gates.wi_ND) && vector_rows(a.gates.wf_ND);
}

NormGatesBackward arguments(const RmsNormGatesBackwardArgs& g, float* workspace, int64_t runs) {
  NormGatesBackward a;
  a.w = data_of<bf16>(g.norm.w_D);
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
  a.bias_partial = workspace + runs * (1 + 2 * a.heads) * g.norm.x_TD.dims[1];
  a.dx_stride = row_stride(g.norm.dx_TD);
  a.wi_stride = row_stride(g.gates.wi_ND);
  a.wf_stride = row_stride(g.gates.wf_ND);
  a.dwi_stride = row_stride(g.gates.dwi_ND);
  a.dwf_stride = row_stride(g.gates.dwf_ND);
  a.runs = static_cast<int>(runs);
  a.cap = g.gates.cap;
  return a;
}

template <int kCluster, int kGates>
Status run_once(Stream& s, const RmsNormGatesBackwardArgs& g) {
  constexpr int64_t kDim = int64_t{kCluster} * kSlice;
  constexpr int64_t kFloats = kRuns<kCluster> * ((1 + kGates) * kDim + kGates);
  static_assert(kFloats * static_cast<int64_t>(sizeof(float)) <= kStreamWorkspace);
  auto* workspace = static_cast<float*>(static_cast<CudaStream&>(s).workspace());
  const int64_t runs = std::min(div_ceil(g.norm.x_TD.dims[0], int64_t{kRows}), kRuns<kCluster>);
  NormGatesBackward a = arguments(g, workspace, runs);
  const Tensor* rows[kArrays] = {&g.norm.x_TD, &g.norm.dy_TD, &g.norm.dx_TD};
  for (int k = 0; k < kArrays; ++k) {
    SWAX_TRY(rows_map("rms_norm_gates_backward", *rows[k], kRows, kSlice, a.rows + k));
  }
  Launch l;
  l.grid = dim3(static_cast<unsigned>(runs * kCluster));
  l.block = dim3(kBlock);
  l.shared_bytes = sizeof(Shared<kCluster, kGates>);
  l.stream = raw(s);
  l.registers = kRegisters;
  SWAX_TRY(launch("rms_norm_gates_backward", l, norm_gates_backward_kernel<kCluster, kGates>, a));
  const auto folds = static_cast<unsigned>((1 + 2 * a.heads) * kDim / kFoldCols);
  launch_early(raw(s), norm_gates_fold, folds, kWarp * kFoldRuns, a, static_cast<int>(kDim));
  return last_launch("rms_norm_gates_backward fold");
}

}  // namespace

Status CudaBackend::rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) {
  SWAX_TRY(validate(a));
  const int64_t dim = a.norm.x_TD.dims[1];
  const int64_t gates = 2 * a.gates.wi_ND.dims[0];
  const bool narrow = dim == 2048 && gates <= 8;
  const bool wide = dim == 4096 && gates <= 16;
  if (!(narrow || wide) || !fits(a)) {
    SWAX_TRY(mlstm_gates_backward(s, a.gates));
    return rms_norm_backward(s, a.norm);
  }
  SWAX_TRY(need_data(
      "rms_norm_gates_backward",
      {&a.norm.x_TD, &a.norm.w_D, &a.norm.rstd_T, &a.norm.dy_TD, &a.norm.dx_TD, &a.norm.dw_D,
       &a.gates.wi_ND, &a.gates.wf_ND, &a.gates.i_TN, &a.gates.f_TN, &a.gates.di_TN, &a.gates.df_TN,
       &a.gates.dwi_ND, &a.gates.dwf_ND, &a.gates.dbi_N, &a.gates.dbf_N}));
  return narrow ? run_once<2, 8>(s, a) : run_once<4, 16>(s, a);
}

}  // namespace swax::cuda
