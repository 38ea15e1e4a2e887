// Soft-capped cross-entropy. Long bf16 rows go through loss_rows.cuh; here are one block a row for
// any shape: a row that fits is kept in registers between the passes (one read, one write), others
// are read again. What gives the losses of the rows lies in the stream's workspace; one cluster of
// blocks adds them, each thread every 8,192nd: one after the other they would wait for each other.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/loss_rows.cuh"
#include "proto/base/text.h"

namespace swax::cuda {
namespace {

namespace cg = cooperative_groups;

__device__ __forceinline__ float larger(float a, float b) {  // NaN goes through
  return a != a || b != b ? a + b : fmaxf(a, b);
}

// The row's vectors of this thread: p = 0, 1, ... from registers or from memory.
template <typename X, int kPacks, bool kAligned>
struct Row {
  X* u;
  int64_t vocab;
  Pack<X> kept[kPacks == 0 ? 1 : kPacks];

  __device__ __forceinline__ int64_t col(int p) const {
    return (static_cast<int64_t>(p) * blockDim.x + threadIdx.x) * kVec;
  }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) kept[p] = load_packed(u, col(p), vocab);
  }
  template <typename Body>  // body(col, values)
  __device__ __forceinline__ void each(Body body) {
    float x[kVec];
    if constexpr (kPacks > 0) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (col(p) >= vocab) continue;
        unpack(kept[p], x);
        body(col(p), x);
      }
    } else {
      for (int p = 0; col(p) < vocab; ++p) {
        load8<kAligned>(u, col(p), vocab, x);
        body(col(p), x);
      }
    }
  }
};

template <typename X, int kPacks, bool kAligned>
__global__ void __launch_bounds__(1024) loss_kernel(Loss<X> a) {
  __shared__ float shared_max[kWarp];
  __shared__ float shared_sum[kWarp];
  const int64_t t = blockIdx.x;
  const int64_t target = a.targets[t];
  Row<X, kPacks, kAligned> row;
  row.u = a.logits + t * a.stride;
  row.vocab = a.vocab;
  if (target < 0 || target >= a.vocab) {
    const float value = target < 0 ? 0.0F : not_a_number();
    if (threadIdx.x == 0) a.losses[t] = {1.0, static_cast<double>(value)};
    if (!a.write_gradient) return;
    const float out[kVec] = {value, value, value, value, value, value, value, value};
    for (int p = 0; row.col(p) < a.vocab; ++p) store8<kAligned>(row.u, row.col(p), a.vocab, out);
    return;
  }
  row.load();
  const Capped at_target = capped(to_f32(row.u[target]), a.cap);
  float top = minus_infinity();
  row.each([&](int64_t col, const float(&u)[kVec]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (kAligned || col + i < a.vocab) top = larger(top, u[i]);
    }
  });
  const float shift = capped(block_max(top, shared_max), a.cap).z;  // the cap keeps the order
  float sum = 0.0F;
  row.each([&](int64_t col, const float(&u)[kVec]) {
    float e[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      e[i] = kAligned || col + i < a.vocab ? expf(capped(u[i], a.cap).z - shift) : 0.0F;
    }
    sum += ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]));
  });
  const float total = block_sum(sum, shared_sum);
  if (threadIdx.x == 0) {
    a.losses[t] = {static_cast<double>(total),
                   static_cast<double>(shift) - static_cast<double>(at_target.z)};
  }
  if (!a.write_gradient) return;
  const float inv_targets = a.scalars->inv_targets;
  const float scale = inv_targets / total;
  const float p_target = expf(at_target.z - shift) / total;
  const float du_target = (p_target - 1.0F) * (inv_targets * at_target.slope);
  // Everybody has read the target's logit: there were two barriers since.
  row.each([&](int64_t col, const float(&u)[kVec]) {
    float du[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Capped c = capped(u[i], a.cap);
      du[i] = expf(c.z - shift) * c.slope * scale;
      if (col + i == target) du[i] = du_target;
    }
    store8<kAligned>(row.u, col, a.vocab, du);
  });
}

constexpr int kLossThreads = 1024;
constexpr int kLossBlocks = 8;  // of one cluster: a chunk has one logarithm for each thread
constexpr int kLossWarps = kLossBlocks * kLossThreads / kWarp;

__device__ __forceinline__ double lanes_tree(double x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// total[0] += the sum of the losses; single[t] = losses[t] when asked for. Thread i of the cluster
// adds losses i, i + 8192, ...; then come the lanes of a warp by a tree, warps 32 apart in rising
// order and those 32 sums by a tree.
__global__ void __cluster_dims__(kLossBlocks) __launch_bounds__(kLossThreads)
    add_losses_kernel(const RowLoss* losses, int64_t count, double* total, double* single) {
  __shared__ double parts[kLossWarps];  // those of the first block
  const cg::cluster_group cluster = cg::this_cluster();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kLossThreads + threadIdx.x;
  double sum = 0.0;
  for (int64_t t = thread; t < count; t += int64_t{kLossBlocks} * kLossThreads) {
    const RowLoss x = losses[t];
    const double loss = log(x.total) + x.offset;
    if (single != nullptr) single[t] = loss;
    sum += loss;
  }
  sum = lanes_tree(sum);
  cluster.sync();  // the first block runs: its memory can be written
  if (threadIdx.x % kWarp == 0) cluster.map_shared_rank(parts, 0)[thread / kWarp] = sum;
  cluster.sync();
  if (thread >= kWarp) return;
  sum = 0.0;
  for (int w = static_cast<int>(thread); w < kLossWarps; w += kWarp) sum += parts[w];
  sum = lanes_tree(sum);
  if (thread == 0) total[0] += sum;
}

template <typename X>
void launch_any(cudaStream_t stream, const Loss<X>& a, bool vectors) {
  const auto blocks = static_cast<unsigned>(a.tokens);
  const int64_t packs = div_ceil(a.vocab, kVec);
  if (vectors && packs <= 256) {
    loss_kernel<X, 1, true><<<blocks, 256, 0, stream>>>(a);
  } else if (vectors && packs <= 1024) {
    loss_kernel<X, 1, true><<<blocks, 1024, 0, stream>>>(a);
  } else if (vectors) {
    loss_kernel<X, 0, true><<<blocks, 512, 0, stream>>>(a);
  } else {
    loss_kernel<X, 0, false><<<blocks, 512, 0, stream>>>(a);
  }
}

constexpr int64_t kLongRow = 8192;  // below it a block of loss_rows.cuh is mostly idle

template <bool kCapped, bool kWhole>
Status launch_rows(cudaStream_t stream, const Loss<bf16>& a) {
  const auto row_bytes = static_cast<int>(round_up(a.vocab * 2, 128));
  const int shared = static_cast<int>(sizeof(RowShared)) + 2 * row_bytes;
  SWAX_CUDA_TRY(
      "cross_entropy",
      cudaFuncSetAttribute(reinterpret_cast<const void*>(loss_rows_kernel<kCapped, kWhole>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(a.tokens, kOneWave));
  const CapMath cap = kCapped ? cap_math(a.cap) : CapMath{};
  loss_rows_kernel<kCapped, kWhole>
      <<<blocks, kRowThreads, static_cast<size_t>(shared), stream>>>(a, cap, row_bytes);
  return ok();
}
Status launch_long(cudaStream_t stream, const Loss<bf16>& a) {
  const bool whole = a.vocab >= int64_t{kRowThreads} * kKeptPacks * kVec;
  if (a.cap > 0.0F) {
    return whole ? launch_rows<true, true>(stream, a) : launch_rows<true, false>(stream, a);
  }
  return whole ? launch_rows<false, true>(stream, a) : launch_rows<false, false>(stream, a);
}

}  // namespace

Status CudaBackend::cross_entropy(Stream& s, const CrossEntropyArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("cross_entropy", {&a.logits_TV, &a.targets_T, &a.loss_sum, &a.token_loss_T}));
  if (a.write_gradient && a.scalars == nullptr) {
    return invalid_argument("cross_entropy: write_gradient needs scalars");
  }
  const int64_t tokens = a.logits_TV.dims[0];
  const int64_t vocab = a.logits_TV.dims[1];
  constexpr int64_t kTokensMax = kStreamWorkspace / static_cast<int64_t>(sizeof(RowLoss));
  if (tokens > kTokensMax) {
    return invalid_argument("cross_entropy: T=" + to_text(tokens) + ": must be at most " +
                            to_text(kTokensMax));
  }
  auto* losses = static_cast<RowLoss*>(static_cast<CudaStream&>(s).workspace());
  const bool vectors = vocab % kVec == 0 && vector_rows(a.logits_TV);
  const auto args = [&]<typename X>(X*) {
    return Loss<X>{data_of<X>(a.logits_TV),
                   row_stride(a.logits_TV),
                   a.targets_T.i32(),
                   losses,
                   a.scalars,
                   tokens,
                   vocab,
                   a.cap,
                   a.write_gradient};
  };
  const bool simple_cap = a.cap == 0.0F || (a.cap >= kCapMin && a.cap <= kCapMax);
  if (a.logits_TV.dtype != DType::kBF16) {
    launch_any(raw(s), args(static_cast<float*>(nullptr)), vectors);
  } else if (vectors && vocab > kLongRow && vocab <= kRowLongest && simple_cap) {
    SWAX_TRY(launch_long(raw(s), args(static_cast<bf16*>(nullptr))));
  } else {
    launch_any(raw(s), args(static_cast<bf16*>(nullptr)), vectors);
  }
  SWAX_TRY(last_launch("cross_entropy"));
  add_losses_kernel<<<kLossBlocks, kLossThreads, 0, raw(s)>>>(
      losses, tokens, a.loss_sum.f64(), a.token_loss_T.empty() ? nullptr : a.token_loss_T.f64());
  return last_launch("cross_entropy sum");
}

}  // namespace swax::cuda
