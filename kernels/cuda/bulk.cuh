// Copies of whole rows into shared memory by the copy engine (PTX ISA 9.0, cp.async.bulk). Device
// code; sm_90a alone.
#pragma once

#include "kernels/cuda/hopper.cuh"

namespace swax::cuda {

// `bytes` and both addresses are multiples of 16; the barrier's phase ends when the bytes that were
// announced are there.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(from)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The same, with a policy for the L2 cache.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(from)), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// The policy of what nobody reads again: it leaves the cache first.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

}  // namespace swax::cuda
