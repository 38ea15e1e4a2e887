// The memory plan: bytes planned equal bytes used, to the byte, and every category equals its
// definition.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "jobs/layout.h"
#include "kernels/graph_backend.h"
#include "tests/worker/model_rig.h"
#include "worker/model/plan.h"

namespace swax::test {
namespace {

constexpr RecomputeMode kModes[] = {RecomputeMode::kNone, RecomputeMode::kLight,
                                    RecomputeMode::kBlock};

pb::JobSpec spec(const std::string& mode = "none", const std::string& reshard = "default") {
  pb::JobSpec s;
  pb::Model& m = *s.mutable_model();
  m.set_pattern("SM");
  m.set_layers(4);
  m.set_dim(48);
  m.set_vocab_size(257);
  m.set_heads(4);
  m.set_kv_heads(2);
  m.set_head_dim(12);
  m.set_mlstm_heads(3);
  m.set_mlstm_qk_dim(8);
  m.set_mlstm_v_dim(16);
  m.set_ff_dim(200);
  m.set_rope_base(10000.0);
  m.set_norm_eps(1e-6);
  m.set_gate_cap(15.0);
  m.set_logit_cap(30.0);
  m.set_doc_reset(true);
  m.set_mlstm_chunk(16);
  s.mutable_window()->set_short_(8);
  s.mutable_window()->set_long_(32);
  s.mutable_training()->set_seq_len(150);
  s.mutable_training()->set_global_batch_size(12);
  s.mutable_training()->set_reduction_lanes(8);
  s.mutable_parallelism()->set_prefetch(1);
  s.mutable_parallelism()->set_fsdp_reshard_after_forward(reshard);
  s.mutable_activation_checkpoint()->set_mode(mode);
  return s;
}

TEST(MemoryPlanTest, PlannedArenaIsUsedToTheByte) {
  const TinyModel models[] = {{},
                              {.pattern = "M", .layers = 3, .mlstm_heads = 3, .chunk = 7},
                              {.pattern = "S", .layers = 2, .heads = 4, .kv_heads = 1},
                              {.pattern = "MMS", .layers = 5, .dim = 24, .vocab = 300, .ff = 8}};
  for (const TinyModel& model : models) {
    const ModelShape shape = tiny_shape(model);
    Rig rig(shape, random_weights(shape, 1));
    for (const int64_t tokens : {1, 16, 131}) {
      const SlotData slot = random_slot(1, tokens, shape.vocab);
      for (const RecomputeMode mode : kModes) {
        const RunResult run = rig.train(slot, {.recompute = mode});
        ASSERT_TRUE(rig.status().ok()) << rig.status().to_string();
        EXPECT_EQ(run.arena_peak, run.arena_planned) << model.pattern << " T=" << tokens;
      }
      const RunResult eval = rig.eval(slot, {});
      ASSERT_TRUE(rig.status().ok()) << rig.status().to_string();
      EXPECT_EQ(eval.arena_peak, eval.arena_planned) << model.pattern << " T=" << tokens;
    }
  }
}

// The trainer has one arena and evaluates in it.
TEST(MemoryPlanTest, EvaluationFitsTheTrainingArena) {
  for (const uint32_t vocab : {3U, 300U, 5000U}) {
    for (const char* pattern : {"S", "M", "SM"}) {
      const ModelShape shape = tiny_shape({.pattern = pattern, .layers = 1, .vocab = vocab});
      for (const int64_t tokens : {1, 64, 400}) {
        for (const RecomputeMode mode : kModes) {
          EXPECT_LE(*eval_arena_bytes(shape, tokens), *train_arena_bytes(shape, tokens, mode));
        }
      }
    }
  }
}

TEST(MemoryPlanTest, CategoriesEqualTheirDefinitions) {
  for (const int ranks : {1, 2, 3, 5}) {
    const auto plan = plan_memory(spec(), ranks);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    const ModelShape shape = *model_shape(spec().model());
    const Layout layout = make_layout(shape, ranks);
    const int64_t shard = layout.shard_elements_total() * 4;
    const auto rows = static_cast<int64_t>(layout.row_order.size());
    EXPECT_EQ(plan->ranks, ranks);
    EXPECT_EQ(plan->master_bytes, shard);
    EXPECT_EQ(plan->moment_bytes, 2 * shard);
    EXPECT_EQ(plan->accumulator_bytes, shard);
    // Groups of 8 have levels 0, 1, 2; of level 0 two ranks have both terms in one micro-step.
    EXPECT_EQ(plan->partial_bytes, (ranks == 2 ? 2 : 3) * shard);
    EXPECT_EQ(plan->staging_bytes, 3 * shard);
    const int64_t numbers = static_cast<int64_t>(sizeof(StepScalars)) +
                            8 * ((12 + ranks - 1) / ranks) +
                            8 * 6 * static_cast<int64_t>(shape.tensors.size());
    EXPECT_EQ(plan->input_bytes, 150 * 13 + 2 * 150 * 6 * 4 + 2 * numbers);
    EXPECT_EQ(plan->exchange_bytes, (ranks > 1 ? 12 : 4) * layout.flat_elements_max());
    EXPECT_EQ(plan->norm_bytes, 8 * (ranks + 1) * layout.rows_per_rank_max + 16 * rows);
    EXPECT_EQ(plan->gather_bytes, 4 * ranks * layout.shard_elements_total());
    EXPECT_EQ(plan->ring_units, shape.units());
    EXPECT_EQ(plan->workspace_bytes, 0);
    EXPECT_EQ(plan->host_bytes(), plan->total());
    EXPECT_EQ(plan->device_bytes(), 0);
    EXPECT_EQ(plan->arena_bytes, *train_arena_bytes(shape, 150, RecomputeMode::kNone));
    EXPECT_EQ(plan->total(), plan->master_bytes + plan->moment_bytes + plan->accumulator_bytes +
                                 plan->partial_bytes + plan->gather_bytes + plan->exchange_bytes +
                                 plan->norm_bytes + plan->arena_bytes + plan->input_bytes +
                                 plan->staging_bytes);
  }
}

// Forward and backward of each layer and window, and the head; two ranks form gradients in one
// place.
TEST(MemoryPlanTest, GraphsAreCountedWhereTheyAre) {
  pb::JobSpec s = spec();
  s.mutable_training()->set_graphs(true);
  EXPECT_EQ(plan_memory(s, 2)->graph_bytes, 0);  // none on a CPU
  s.mutable_training()->set_backend("cuda");
  const auto with = plan_memory(s, 2);
  s.mutable_training()->set_graphs(false);
  const auto without = plan_memory(s, 2);
  ASSERT_TRUE(with.ok() && without.ok());
  int64_t forward = 0;
  const ModelShape shape = *model_shape(s.model());
  for (const LayerKind kind : shape.kinds) forward += kind == LayerKind::kAttention ? 2 : 1;
  EXPECT_EQ(with->graph_bytes, (2 * forward + 1) * GraphBackend::kGraphBytes);
  EXPECT_EQ(without->graph_bytes, 0);
  EXPECT_EQ(with->device_bytes(), without->device_bytes() + with->graph_bytes);
}

// On a GPU values are bf16, slots of all micro-steps wait in pinned memory, streams have
// workspaces; the state stays f32.
TEST(MemoryPlanTest, CudaCategoriesEqualTheirDefinitions) {
  for (const int ranks : {1, 2, 5}) {
    pb::JobSpec s = spec();
    s.mutable_training()->set_backend("cuda");
    const auto cuda = plan_memory(s, ranks), cpu = plan_memory(spec(), ranks);
    ASSERT_TRUE(cuda.ok() && cpu.ok());
    const ModelShape shape = *model_shape(s.model());
    EXPECT_EQ(cuda->backend, BackendKind::kCuda);
    EXPECT_EQ(2 * cuda->gather_bytes, cpu->gather_bytes);
    EXPECT_EQ(cuda->master_bytes, cpu->master_bytes);
    EXPECT_EQ(cuda->exchange_bytes, cpu->exchange_bytes);
    const int64_t pinned_slots = (12 + ranks - 1) / ranks * 150 * 13;
    EXPECT_EQ(cuda->input_bytes, cpu->input_bytes + pinned_slots);
    EXPECT_EQ(cuda->input_pinned_bytes, cpu->input_pinned_bytes + pinned_slots);
    EXPECT_EQ(cuda->workspace_bytes, 3 * stream_workspace_bytes(BackendKind::kCuda));
    EXPECT_EQ(cuda->host_bytes(), cuda->staging_bytes + cuda->input_pinned_bytes);
    EXPECT_EQ(cuda->arena_bytes,
              *train_arena_bytes(shape, 150, RecomputeMode::kNone, BackendKind::kCuda));
    // Not half: the gates, the scratch and what is padded to 256 bytes stay.
    EXPECT_LT(cuda->arena_bytes, 4 * cpu->arena_bytes / 5);
    EXPECT_EQ(cuda->step_flops, cpu->step_flops);
  }
}

TEST(MemoryPlanTest, OptionsShrinkWhatTheyShould) {
  const MemoryPlan none = *plan_memory(spec("none", "never"), 2);
  const MemoryPlan light = *plan_memory(spec("light"), 2);
  const MemoryPlan block = *plan_memory(spec("block"), 2);
  EXPECT_LT(light.arena_bytes, none.arena_bytes);
  EXPECT_LT(block.arena_bytes, light.arena_bytes);
  EXPECT_EQ(light.master_bytes, none.master_bytes);
  EXPECT_GT(block.step_flops, 1.2 * none.step_flops);  // forward again
  const MemoryPlan resharded = *plan_memory(spec("none", "always"), 2);
  EXPECT_EQ(resharded.ring_units, 2);
  EXPECT_LT(resharded.gather_bytes, none.gather_bytes);
  pb::JobSpec no_prefetch = spec("none", "always");
  no_prefetch.mutable_parallelism()->set_prefetch(0);
  EXPECT_EQ(2 * plan_memory(no_prefetch, 2)->gather_bytes, resharded.gather_bytes);
  pb::JobSpec own_groups = spec();
  own_groups.mutable_training()->set_reduction_lanes(1);
  EXPECT_EQ(plan_memory(own_groups, 2)->partial_bytes, 0);
}

TEST(MemoryPlanTest, OptionsComeFromTheSpec) {
  EXPECT_EQ(plan_options(spec("light")).recompute, RecomputeMode::kLight);
  EXPECT_EQ(plan_options(spec("block")).recompute, RecomputeMode::kBlock);
  EXPECT_EQ(plan_options(spec("none")).recompute, RecomputeMode::kNone);
  pb::JobSpec some = spec("block");
  some.mutable_activation_checkpoint()->set_layers(3);
  EXPECT_EQ(plan_options(some).recompute, RecomputePolicy(RecomputeMode::kBlock, 3));
  EXPECT_TRUE(plan_options(spec("none", "always")).reshard);
  EXPECT_FALSE(plan_options(spec("none", "default")).reshard);
  EXPECT_EQ(plan_options(spec()).prefetch, 1);
}

// Products dominate: forward 2 FLOPs a weight and token, backward twice that, recompute once more.
TEST(MemoryPlanTest, FlopsAreThoseOfTheProducts) {
  const ModelShape shape = *model_shape(spec().model());
  int64_t products = 0;
  for (const TensorInfo& t : shape.tensors) {
    const bool gate = t.name.ends_with("mlstm.wi") || t.name.ends_with("mlstm.wf");
    if (t.shape.size() == 2 && t.name != "embed.weight" && !gate) products += t.elements();
  }
  const double expected = 6.0 * static_cast<double>(products) * 150.0;
  const double flops = plan_memory(spec(), 1)->step_flops;
  EXPECT_GT(flops, expected);
  EXPECT_LT(flops, 1.5 * expected);  // attention and cells on top
}

TEST(MemoryPlanTest, ImpossibleIsRefused) {
  EXPECT_EQ(plan_memory(spec(), 0).status().code(), Code::kInvalidArgument);
  pb::JobSpec odd = spec();
  odd.mutable_model()->set_head_dim(13);
  EXPECT_EQ(plan_memory(odd, 1).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace swax::test
