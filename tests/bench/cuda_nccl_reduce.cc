#include "tests/bench/cuda_nccl_reduce.h"

#include <stdlib.h>

#include "kernels/cuda/cuda_backend.h"
#include "tests/bench/cuda_nccl_calls.h"

namespace swax::test {
namespace {

class Reduce final : public NcclReduce {
 public:
  Reduce(Backend& backend, ncclComm_t comm) : backend_(backend), comm_(comm) {}
  ~Reduce() override { ncclCommDestroy(comm_); }
  Result<Event> reduce_scatter(Stream& s, Tensor send, Tensor recv) override {
    SWAX_TRY(
        nccl_status("reduce_scatter",
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
  SWAX_ASSIGN(const ncclUniqueId id, nccl_unique_id(host));
  ncclComm_t comm = nullptr;
  SWAX_TRY(nccl_status("start", ncclCommInitRank(&comm, host.size(), id, host.rank())));
  return std::unique_ptr<NcclReduce>(std::make_unique<Reduce>(backend, comm));
}

}  // namespace swax::test
