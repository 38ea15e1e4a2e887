// NCCL's own reduce-scatter, for benchmarks alone: the trainer adds in an order of its own.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "worker/comm/collectives.h"

namespace swax::test {

class NcclReduce {
 public:
  virtual ~NcclReduce() = default;
  // recv [S] := sum over ranks of their piece for this rank of send [W*S]; f32. Only enqueues.
  virtual Result<Event> reduce_scatter(Stream& s, Tensor send, Tensor recv) = 0;
};

// A communicator of its own beside that of the collectives. Every rank calls it; both outlive it.
Result<std::unique_ptr<NcclReduce>> make_nccl_reduce(Backend& backend, Collectives& host);

}  // namespace swax::test
