// Blocks of one cluster: their order, a meeting, stores into each other's shared memory (PTX ISA
// 9.0, barrier.cluster, mapa, st.async). Device code; sm_90a alone.
#pragma once

#include "kernels/cuda/hopper.cuh"

namespace swax::cuda {

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// Every thread says that it is there; then waits for all threads of the cluster. Orders nothing but
// barriers in shared memory whose barrier_init_fence() came before.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The place of `p` in the shared memory of block `rank`.
__device__ __forceinline__ uint32_t address_in(const void* p, int rank) {
  uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(shared_address(p)), "r"(rank));
  return out;
}
// Stores 16 bytes in another block; they count as announced bytes of the barrier there, and who
// waits for its phase can read them.
__device__ __forceinline__ void store_in(uint32_t to, const float4& x, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}

}  // namespace swax::cuda
