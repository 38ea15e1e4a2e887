// Launching a kernel before the one in front of it on the stream has ended (programmatic dependent
// launch, CUDA programming guide): its blocks take their places as those of the other leave them.
// The kernel in front calls let_next_start() in each block; the one launched by launch_early()
// calls wait_for_previous() before it reads or writes anything that the other touches. Into a graph
// both are captured as they are. Threads: stateless.
#pragma once

#include <cuda_runtime.h>

namespace swax::cuda {

__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until the kernel in front has ended and its writes can be read.
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Errors: as after <<<>>>, in the last error of the runtime.
template <typename... Params, typename... Args>
void launch_early(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block,
                  Args... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, Params{args}...);
}

}  // namespace swax::cuda
