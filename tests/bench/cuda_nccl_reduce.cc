#include "tests/bench/cuda_nccl_reduce.h"

#include <nccl.h>
#include <stdlib.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"

namespace swax::test {
namespace {

Status status_of(const char* call, ncclResult_t result) {
  return result == ncclSuccess
             ? ok()
             : internal_error(std::string("NCCL ") + call + ": " + ncclGetErrorString(result));
}

class Reduce final : public NcclReduce {
 public:
  Reduce(Backend& backend, ncclComm_t comm) : backend_(backend), comm_(comm) {}
  ~Reduce() override { ncclCommDestroy(comm_); }
  Result<Event> reduce_scatter(Stream& s, Tensor send, Tensor recv) override {
    SWAX_TRY(status_of("reduce_scatter",
                       ncclReduceScatter(send.data, recv.data, static_cast<size_t>(recv.elements()),
                                         ncclFloat, ncclSum, comm_, cuda::raw(s))));
    return backend_.record(s);
  }

 private:
  Backend& backend_;
  ncclComm_t comm_;
};

}  // namespace

Result<std::unique_ptr<NcclReduce>> make_nccl_reduce(Backend& backend, Collectives& host) {
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);  // multicast objects of NVLink belong to the whole host
  ncclUniqueId mine;
  std::memset(&mine, 0, sizeof mine);
  if (host.rank() == 0) SWAX_TRY(status_of("unique id", ncclGetUniqueId(&mine)));
  std::vector<ncclUniqueId> all(static_cast<size_t>(host.size()));
  SWAX_TRY(host.all_gather_host(std::as_bytes(std::span(&mine, 1)),
                                std::as_writable_bytes(std::span(all))));
  ncclComm_t comm = nullptr;
  SWAX_TRY(status_of("start", ncclCommInitRank(&comm, host.size(), all[0], host.rank())));
  return std::unique_ptr<NcclReduce>(std::make_unique<Reduce>(backend, comm));
}

}  // namespace swax::test
