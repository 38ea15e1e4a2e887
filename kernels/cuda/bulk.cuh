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

}  // namespace swax::cuda
