// The CUDA part of kernels/device_facts.h.
#pragma once

#include <vector>

#include "kernels/device_facts.h"

namespace swax::cuda {

std::vector<DeviceFact> device_facts();

}  // namespace swax::cuda
