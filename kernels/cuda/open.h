// Opens the CUDA backend without CUDA's headers. Threads: any.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace swax::cuda {

// kFailedPrecondition without a usable device of compute capability 9.0, naming the reason.
Result<std::unique_ptr<Backend>> open_cuda_backend(int ordinal);

}  // namespace swax::cuda
