// Device memory of NCCL's own making, which the other ranks of a host can reach: calls on it are
// made by the copy engines of the GPUs and take no multiprocessor from the model (symmetric windows
// and NCCL_CTA_POLICY_ZERO; NCCL 2.28 user guide, "Zero-CTA optimization"). Where ranks cannot
// reach each other's memory NCCL moves it as any other. Internal to worker/comm. Threads: the
// rank's.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "proto/base/status.h"

namespace swax {

class NcclMemory {
 public:
  // Every rank asks for the same sizes in the same order. The memory is freed by release(), not by
  // the buffer. kResourceExhausted: the device is full.
  Result<Buffer> allocate(int device, int64_t bytes);
  bool owns(const void* data) const;
  bool empty() const { return blocks_.empty(); }
  // Makes the block that starts at `data` known to all ranks: a call of all ranks, in the
  // background of a communicator that does not block.
  ncclResult_t open(ncclComm_t comm, void* data);
  // Before the end of the communicator.
  void close(ncclComm_t comm);
  // After it; nothing may use the memory then.
  void release();

 private:
  struct MemoryBlock {
    void* data = nullptr;
    int64_t bytes = 0;
    ncclWindow_t window = nullptr;
  };
  MemoryBlock* find(const void* data) const;

  std::vector<std::unique_ptr<MemoryBlock>> blocks_;  // NCCL writes to a window later
};

}  // namespace swax
