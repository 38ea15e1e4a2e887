#include "ops/cli/plan_report.h"

#include <algorithm>

#include "jobs/data_order.h"
#include "jobs/schedule.h"
#include "jobs/slot_plan.h"
#include "jobs/spec.h"
#include "ops/cli/data_sets.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr double kTrainingToForward = 3.0;  // the backward pass costs two forward passes
constexpr int64_t kStateValues = 3;         // weight and both moments, fp32

Result<RankPlan> plan_of_ranks(const pb::JobSpec& spec, int ranks) {
  RankPlan plan;
  SWAX_ASSIGN(plan.memory, plan_memory(spec, ranks));
  const SlotPlan slots{.slots = spec.training().global_batch_size(),
                       .ranks = ranks,
                       .lanes = static_cast<int>(spec.training().reduction_lanes())};
  plan.micro_steps = micro_steps(slots);
  for (int64_t j = 0; j < plan.micro_steps; ++j) {
    if (slot_of(slots, j, ranks - 1) != kNoSlot) ++plan.slots_min;
  }
  plan.busy = static_cast<double>(slots.slots) / static_cast<double>(plan.micro_steps * ranks);
  return plan;
}

std::vector<WindowWork> window_work(const pb::JobSpec& spec, const ModelShape& shape) {
  const int64_t length = spec.training().seq_len();
  const auto work = [&](const char* name, int64_t window, double share) {
    return WindowWork{
        .name = name,
        .window = window,
        .share = share,
        .flops_per_token = kTrainingToForward * forward_flops_per_token(shape, window, length)};
  };
  const double share = expected_window_share(spec);
  return {work("short", spec.window().short_(), share),
          work("long", spec.window().long_(), 1.0 - share)};
}

std::vector<SchedulePoint> schedule_points(const pb::JobSpec& spec) {
  const int64_t steps = total_steps(spec);
  const int64_t warmup = static_cast<int64_t>(spec.lr_scheduler().warmup_steps());
  const int64_t cooldown = static_cast<int64_t>(spec.lr_scheduler().cooldown_steps());
  std::vector<SchedulePoint> points;
  const auto add = [&](const char* what, int64_t step) {
    if (step < 0 || step >= steps) return;
    points.push_back({.what = what,
                      .step = step,
                      .lr = learning_rate(spec, step),
                      .window = attention_window(spec, step)});
  };
  add("first step", 0);
  if (warmup > 0) add("warm-up ends", warmup - 1);
  if (warmup < steps - cooldown) add("decay starts", warmup);
  if (spec.window().p() > 0) add("long windows only from", anneal_begin(spec));
  if (cooldown > 0) add("cool-down starts", steps - cooldown);
  add("last step", steps - 1);
  std::stable_sort(points.begin(), points.end(),
                   [](const auto& a, const auto& b) { return a.step < b.step; });
  return points;
}

// Size of the source's data set, when it stands there already.
Status fill_size(const pb::JobSpec& spec, const pb::DataSource& source, const std::string& store,
                 SourcePlan* plan) {
  const Result<DataSet> found = find_source_data(source, store);
  if (!found.ok()) {
    plan->unknown = found.status().message();
    return ok();
  }
  SWAX_TRY(found->status);
  if (found->manifest.vocab_size() > spec.model().vocab_size())
    return invalid_argument("model.vocab_size=" + to_text(uint64_t{spec.model().vocab_size()}) +
                            ": data set " + printable(found->folder) + " needs " +
                            to_text(uint64_t{found->manifest.vocab_size()}));
  plan->train_tokens = split_tokens(found->manifest, "train");
  return ok();
}

Result<std::vector<SourcePlan>> source_plans(const pb::JobSpec& spec, const std::string& store) {
  const int64_t length = spec.training().seq_len();
  const int64_t sequences = total_steps(spec) * spec.training().global_batch_size();
  std::vector<SourcePlan> plans;
  std::vector<int64_t> tokens;
  for (const pb::DataSource& source : spec.data().sources()) {
    SourcePlan plan;
    plan.name = source.name();
    plan.place = source.path().empty() ? source.text() : source.path();
    SWAX_TRY(fill_size(spec, source, store, &plan));
    // The mixture does not depend on sizes: any size will do where none is known.
    tokens.push_back(plan.train_tokens.value_or(length + 1));
    plans.push_back(std::move(plan));
  }
  SWAX_ASSIGN(const DataOrder order, make_data_order(spec, tokens));
  for (int64_t t = 0; t < kMixPeriod; ++t) {
    SourcePlan& plan = plans[static_cast<size_t>(order.period()[static_cast<size_t>(t)])];
    plan.sequences += sequences / kMixPeriod + (t < sequences % kMixPeriod ? 1 : 0);
  }
  for (size_t s = 0; s < plans.size(); ++s) {
    SourcePlan& plan = plans[s];
    plan.share = static_cast<double>(plan.sequences) / static_cast<double>(sequences);
    plan.tokens = plan.sequences * length;
    if (plan.train_tokens)
      plan.epochs = static_cast<double>(plan.sequences) /
                    static_cast<double>(order.windows(static_cast<int>(s)));
  }
  return plans;
}

}  // namespace

Result<PlanReport> make_plan_report(const pb::JobSpec& spec, const std::string& data_folder) {
  SWAX_ASSIGN(const ModelShape shape, model_shape(spec.model()));
  PlanReport plan;
  plan.job = spec.job().name();
  plan.pattern = spec.model().pattern();
  plan.backend = spec.training().backend();
  plan.recompute = recompute_text(spec);
  plan.layers = shape.layers;
  plan.dim = shape.dim;
  plan.vocab = shape.vocab;
  plan.parameters = shape.parameters();
  plan.parameters_embedding = 2 * shape.vocab * shape.dim;
  plan.seq_len = spec.training().seq_len();
  plan.batch = spec.training().global_batch_size();
  plan.lanes = spec.training().reduction_lanes();
  plan.steps = total_steps(spec);
  plan.tokens_per_step = plan.seq_len * plan.batch;
  plan.tokens = plan.tokens_per_step * plan.steps;
  plan.checkpoint_bytes = kStateValues * plan.parameters * static_cast<int64_t>(sizeof(float));
  plan.checkpoints_kept = spec.checkpoint().enable() ? spec.checkpoint().keep_latest_k() : 0;
  plan.ranks = static_cast<int>(spec.parallelism().ranks());
  for (const int ranks : allowed_ranks(spec)) {
    SWAX_ASSIGN(RankPlan of_ranks, plan_of_ranks(spec, ranks));
    plan.by_ranks.push_back(std::move(of_ranks));
  }
  plan.slot_flops = plan.by_ranks.front().memory.step_flops;
  plan.windows = window_work(spec, shape);
  for (const WindowWork& work : plan.windows)
    plan.total_flops += work.share * work.flops_per_token * static_cast<double>(plan.tokens);
  plan.schedule = schedule_points(spec);
  SWAX_ASSIGN(plan.sources, source_plans(spec, data_folder));
  return plan;
}

}  // namespace swax
