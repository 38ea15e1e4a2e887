#include "worker/comm/nccl_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/check.h"
#include "proto/base/text.h"

namespace swax {
namespace {

void keep(void*, void*, int64_t) {}

}  // namespace

Result<Buffer> NcclMemory::allocate(int device, int64_t bytes) {
  SWAX_CUDA_TRY("collectives", cudaSetDevice(device));
  auto block = std::make_unique<MemoryBlock>();
  block->bytes = std::max(bytes, int64_t{1});
  const ncclResult_t result = ncclMemAlloc(&block->data, static_cast<size_t>(block->bytes));
  if (result != ncclSuccess) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return resource_exhausted("NCCL: " + bytes_text(bytes) + " wanted, " +
                              bytes_text(static_cast<int64_t>(free)) + " of " +
                              bytes_text(static_cast<int64_t>(total)) + " device memory free (" +
                              ncclGetErrorString(result) + ")");
  }
  blocks_.push_back(std::move(block));
  return Buffer(blocks_.back()->data, bytes, &keep, nullptr);
}

NcclMemory::MemoryBlock* NcclMemory::find(const void* data) const {
  const auto at =
      std::ranges::find_if(blocks_, [&](const auto& block) { return block->data == data; });
  return at == blocks_.end() ? nullptr : at->get();
}

bool NcclMemory::owns(const void* data) const { return find(data) != nullptr; }

ncclResult_t NcclMemory::open(ncclComm_t comm, void* data) {
  MemoryBlock* const block = find(data);
  if (block == nullptr) return ncclInvalidArgument;
  return ncclCommWindowRegister(comm, block->data, static_cast<size_t>(block->bytes),
                                &block->window, NCCL_WIN_COLL_SYMMETRIC);
}

void NcclMemory::close(ncclComm_t comm) {
  for (const auto& block : blocks_) {
    if (block->window != nullptr) ncclCommWindowDeregister(comm, block->window);
    block->window = nullptr;
  }
}

void NcclMemory::release() {
  for (const auto& block : blocks_) ncclMemFree(block->data);
  blocks_.clear();
}

}  // namespace swax
