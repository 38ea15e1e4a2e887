// Memory and work of one rank, planned by running the real model code on a MeasuringBackend and a
// measuring arena: planned = used, to the byte. The trainer allocates exactly these blocks; `swax
// plan` prints them.
#pragma once

#include <cstdint>
#include <string>

#include "jobs/layout.h"
#include "jobs/model_shape.h"
#include "jobs/slot_plan.h"
#include "proto/job.pb.h"
#include "worker/model/arena.h"
#include "worker/model/layer.h"

namespace swax {

struct MemoryPlan {
  int ranks = 0;
  BackendKind backend = BackendKind::kCpu;
  int64_t master_bytes = 0;       // fp32 shard
  int64_t moment_bytes = 0;       // adam m and v
  int64_t accumulator_bytes = 0;  // fp32 sum of slot gradients
  int64_t partial_bytes = 0;      // partial sums of a group: levels_waiting() * shard
  int64_t gather_bytes = 0;       // ring of gathered units
  // Slot gradient of one unit; two ranks or more: of two units, and pieces received.
  int64_t exchange_bytes = 0;
  int64_t norm_bytes = 0;   // row sums, gathered rows, order, tree scratch
  int64_t arena_bytes = 0;  // activations and scratch
  // Tokens, targets, document starts, resets of a slot; RoPE tables; and twice, on the device and
  // pinned: StepScalars, a loss (f64) a micro-step, two digest sums (i64) a state tensor. On a GPU
  // also pinned: the slots of all micro-steps, so that no copy waits for the host.
  int64_t input_bytes = 0;
  int64_t input_pinned_bytes = 0;  // of them pinned
  int64_t staging_bytes = 0;       // checkpoint copy (pinned host memory)
  int64_t workspace_bytes = 0;     // of the streams
  int64_t graph_bytes = 0;         // of the graphs, at most; estimated, not allocated by us
  int64_t total() const;
  // On the CPU all memory is the host's; on a GPU what is not pinned lies on the device.
  int64_t host_bytes() const;
  int64_t device_bytes() const { return total() - host_bytes(); }
  int ring_units = 0;       // units the ring holds at once (all of them: never resharded)
  double step_flops = 0.0;  // executed per slot forward + backward, from cost()
};

struct PlanOptions {
  BackendKind backend = BackendKind::kCpu;
  RecomputePolicy recompute{};
  bool reshard = false;  // give gathered weights back after use
  int prefetch = 1;
};
PlanOptions plan_options(const pb::JobSpec& spec);
BackendKind backend_kind(const pb::JobSpec& spec);      // of [training] backend
RecomputeMode recompute_mode(const std::string& name);  // "none", "light", "block"
std::string recompute_text(const pb::JobSpec& spec);    // "block", "block in 12 of 32 layers"
// kInvalidArgument when the shape cannot be built.
Result<MemoryPlan> plan_memory(const pb::JobSpec& spec, int ranks);

// Arena bytes that train_slot (and eval_slot, which never needs more) or decode use on this shape.
// The backend decides the precision.
Result<int64_t> train_arena_bytes(const ModelShape& shape, int64_t tokens,
                                  RecomputePolicy recompute,
                                  BackendKind backend = BackendKind::kCpu);
Result<int64_t> eval_arena_bytes(const ModelShape& shape, int64_t tokens,
                                 BackendKind backend = BackendKind::kCpu);
Result<int64_t> decode_arena_bytes(const ModelShape& shape);

}  // namespace swax
