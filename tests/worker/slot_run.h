// Forward and backward of one slot on any backend, memory of its own: loss and gradients on the
// host. Threads: one.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "tests/worker/model_rig.h"

namespace swax::test {

struct SlotRun {
  double loss = 0.0;         // sum, nats
  std::vector<float> grads;  // flat, table order
};
// In the precision of `kind`; `backend` is of that kind. 1 / targets of the slot scales gradients.
Result<SlotRun> run_slot(Backend& backend, BackendKind kind, const ModelShape& shape,
                         const std::vector<float>& weights, const SlotData& slot,
                         const RunOptions& options);

}  // namespace swax::test
