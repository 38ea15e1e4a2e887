// The two forms of a plan: text of at most 80 columns, and JSON with every number whole.
#include <algorithm>

#include "ops/cli/plan_report.h"
#include "proto/base/text.h"

namespace swax {
namespace {

struct Category {
  const char* name;
  const char* what;
  int64_t MemoryPlan::*bytes;
};

constexpr Category kCategories[] = {
    {"master", "weights, fp32, own shard", &MemoryPlan::master_bytes},
    {"moments", "AdamW m and v, own shard", &MemoryPlan::moment_bytes},
    {"accumulator", "sum of the slot gradients", &MemoryPlan::accumulator_bytes},
    {"partials", "partial sums of a group of slots", &MemoryPlan::partial_bytes},
    {"gathered", "whole weights of the units in use", &MemoryPlan::gather_bytes},
    {"exchange", "slot gradients of units, pieces received", &MemoryPlan::exchange_bytes},
    {"norm", "row sums of the gradient norm", &MemoryPlan::norm_bytes},
    {"activations", "arena: saved tensors and scratch of a slot", &MemoryPlan::arena_bytes},
    {"inputs", "tokens, RoPE tables, numbers of the step", &MemoryPlan::input_bytes},
    {"staging", "copy for the checkpoint being written", &MemoryPlan::staging_bytes},
    {"workspace", "of the streams of a GPU", &MemoryPlan::workspace_bytes},
    {"graphs", "CUDA graphs of the layers, about", &MemoryPlan::graph_bytes},
};

std::string scientific(double value) {
  int exponent = 0;
  for (; value >= 9.995; ++exponent) value /= 10;
  return fixed_text(value, 2) + "e" + to_text(exponent);
}

std::string percent(double share) { return fixed_text(100.0 * share, 1) + " %"; }

std::string line(std::string name, const std::string& value) {
  constexpr size_t kValueColumn = 20;
  name.resize(kValueColumn, ' ');
  return name + value + "\n";
}

std::string size_part(const PlanReport& plan) {
  std::string text = "Job " + plan.job + ": " + to_text(plan.layers) + " layers of pattern " +
                     plan.pattern + ", width " + to_text(plan.dim) + ", vocabulary " +
                     group_digits(plan.vocab) + "\n\n";
  text += line("parameters", group_digits(plan.parameters) + " (" +
                                 group_digits(plan.parameters - plan.parameters_embedding) +
                                 " without embedding and head)");
  text +=
      line("a step", group_digits(plan.tokens_per_step) + " tokens: " + group_digits(plan.batch) +
                         " sequences of " + group_digits(plan.seq_len));
  text += line("the run", group_digits(plan.steps) + " steps, " + group_digits(plan.tokens) +
                              " tokens, " + scientific(plan.total_flops) + " FLOPs");
  text +=
      line("a checkpoint", bytes_text(plan.checkpoint_bytes) + " (" +
                               group_digits(plan.checkpoint_bytes) + " bytes of tensors); " +
                               (plan.checkpoints_kept > 0 ? to_text(plan.checkpoints_kept) + " kept"
                                                          : std::string("none are written")));
  return text;
}

std::string work_part(const PlanReport& plan) {
  TextTable table({{"window"}, {"keys"}, {"share of steps"}, {"FLOPs a token"}, {"FLOPs a step"}});
  for (const WindowWork& work : plan.windows)
    table.add({work.name, group_digits(work.window), percent(work.share),
               scientific(work.flops_per_token),
               scientific(work.flops_per_token * static_cast<double>(plan.tokens_per_step))});
  return "\nWork of the model, forward and backward\n" + table.text(2);
}

std::string schedule_part(const PlanReport& plan) {
  TextTable table({{"", TextTable::Align::kLeft}, {"step"}, {"learning rate"}, {"window"}});
  for (const SchedulePoint& point : plan.schedule)
    table.add(
        {point.what, group_digits(point.step), to_text(point.lr), group_digits(point.window)});
  return "\nSchedule (steps count from 0)\n" + table.text(2);
}

std::string source_part(const PlanReport& plan) {
  TextTable table({{"source", TextTable::Align::kLeft},
                   {"share"},
                   {"tokens read"},
                   {"its tokens"},
                   {"epochs"},
                   {"from", TextTable::Align::kLeft}});
  for (const SourcePlan& source : plan.sources) {
    const bool known = source.train_tokens.has_value();
    table.add({one_line(source.name, 16), percent(source.share), group_digits(source.tokens),
               known ? group_digits(*source.train_tokens) : source.unknown,
               known ? fixed_text(source.epochs, 2) : "?", one_line(source.place, 17)});
  }
  return "\nData\n" + table.text(2);
}

struct Unit {
  const char* name;
  double bytes;
};

Unit unit_for(int64_t largest_bytes) {
  constexpr Unit kUnits[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  Unit unit = kUnits[0];
  for (const Unit& next : kUnits) {
    if (static_cast<double>(largest_bytes) >= 10 * next.bytes) unit = next;
  }
  return unit;
}

std::string in_unit(int64_t bytes, const Unit& unit) {
  const double value = static_cast<double>(bytes) / unit.bytes;
  return fixed_text(value, value < 99.995 ? 2 : 1);
}

std::string ranks_part(const PlanReport& plan) {
  int64_t largest = 0;
  for (const RankPlan& ranks : plan.by_ranks) largest = std::max(largest, ranks.memory.total());
  const Unit unit = unit_for(largest);
  TextTable memory({{"ranks"},
                    {"state"},
                    {"sums"},
                    {"gathered"},
                    {"exchange"},
                    {"activ."},
                    {"other"},
                    {"staging"},
                    {"total"}});
  TextTable slots({{"ranks"}, {"micro-steps"}, {"slots of a rank"}, {"busy"}});
  for (const RankPlan& ranks : plan.by_ranks) {
    const MemoryPlan& m = ranks.memory;
    const auto cell = [&](int64_t bytes) { return in_unit(bytes, unit); };
    memory.add({to_text(m.ranks), cell(m.master_bytes + m.moment_bytes),
                cell(m.accumulator_bytes + m.partial_bytes), cell(m.gather_bytes),
                cell(m.exchange_bytes), cell(m.arena_bytes),
                cell(m.norm_bytes + m.input_bytes + m.workspace_bytes + m.graph_bytes),
                cell(m.staging_bytes), cell(m.total())});
    const std::string most = group_digits(ranks.micro_steps);
    slots.add({to_text(m.ranks), most,
               ranks.slots_min == ranks.micro_steps ? most
                                                    : group_digits(ranks.slots_min) + " to " + most,
               percent(ranks.busy)});
  }
  return "\nMemory of one rank on the " + plan.backend + " backend, in " + unit.name +
         " (recompute: " + plan.recompute + ")\n" + memory.text(2) +
         "\nSlots of a step over the ranks (the sum order does not depend on this)\n" +
         slots.text(2);
}

std::string bytes_part(const PlanReport& plan) {
  for (const RankPlan& ranks : plan.by_ranks) {
    if (ranks.memory.ranks != plan.ranks) continue;
    TextTable table({{"", TextTable::Align::kLeft}, {"bytes"}, {"", TextTable::Align::kLeft}});
    for (const Category& category : kCategories)
      table.add({category.name, group_digits(ranks.memory.*category.bytes), category.what});
    table.add({"total", group_digits(ranks.memory.total()), ""});
    if (const int64_t device = ranks.memory.device_bytes(); device > 0) {
      table.add({"device", group_digits(device), "of the total, memory of the GPU"});
      table.add({"host", group_digits(ranks.memory.host_bytes()), "of the total, pinned memory"});
    }
    return "\nMemory of one of " + to_text(plan.ranks) + " ranks, to the byte\n" + table.text(2);
  }
  return "";
}

Json memory_json(const RankPlan& ranks) {
  Json bytes = Json::object();
  for (const Category& category : kCategories)
    bytes.set(category.name, ranks.memory.*category.bytes);
  bytes.set("total", ranks.memory.total());
  return Json::object()
      .set("ranks", ranks.memory.ranks)
      .set("memory_bytes", bytes)
      .set("device_bytes", ranks.memory.device_bytes())
      .set("host_bytes", ranks.memory.host_bytes())
      .set("ring_units", ranks.memory.ring_units)
      .set("micro_steps", ranks.micro_steps)
      .set("slots_min", ranks.slots_min)
      .set("slots_max", ranks.micro_steps)
      .set("busy", ranks.busy);
}

Json source_json(const SourcePlan& source) {
  const bool known = source.train_tokens.has_value();
  return Json::object()
      .set("name", source.name)
      .set("from", source.place)
      .set("share", source.share)
      .set("sequences", source.sequences)
      .set("tokens", source.tokens)
      .set("train_tokens", known ? Json(*source.train_tokens) : Json())
      .set("epochs", known ? Json(source.epochs) : Json())
      .set("unknown", known ? Json() : Json(source.unknown));
}

}  // namespace

std::string plan_text(const PlanReport& plan) {
  return size_part(plan) + work_part(plan) + schedule_part(plan) + source_part(plan) +
         ranks_part(plan) + bytes_part(plan);
}

Json plan_json(const PlanReport& plan) {
  Json windows = Json::array(), schedule = Json::array(), sources = Json::array(),
       ranks = Json::array();
  for (const WindowWork& work : plan.windows)
    windows.push(Json::object()
                     .set("name", work.name)
                     .set("keys", work.window)
                     .set("share", work.share)
                     .set("flops_per_token", work.flops_per_token));
  for (const SchedulePoint& point : plan.schedule)
    schedule.push(Json::object()
                      .set("what", point.what)
                      .set("step", point.step)
                      .set("lr", static_cast<double>(point.lr))
                      .set("lr_bits", hex_bits(point.lr))
                      .set("window", point.window));
  for (const SourcePlan& source : plan.sources) sources.push(source_json(source));
  for (const RankPlan& of_ranks : plan.by_ranks) ranks.push(memory_json(of_ranks));
  return Json::object()
      .set("job", plan.job)
      .set("pattern", plan.pattern)
      .set("backend", plan.backend)
      .set("recompute", plan.recompute)
      .set("layers", plan.layers)
      .set("dim", plan.dim)
      .set("vocab_size", plan.vocab)
      .set("parameters", plan.parameters)
      .set("parameters_without_embeddings", plan.parameters - plan.parameters_embedding)
      .set("seq_len", plan.seq_len)
      .set("global_batch_size", plan.batch)
      .set("reduction_lanes", plan.lanes)
      .set("steps", plan.steps)
      .set("tokens_per_step", plan.tokens_per_step)
      .set("tokens", plan.tokens)
      .set("total_flops", plan.total_flops)
      .set("slot_flops_executed", plan.slot_flops)
      .set("checkpoint_bytes", plan.checkpoint_bytes)
      .set("checkpoints_kept", plan.checkpoints_kept)
      .set("ranks", plan.ranks)
      .set("windows", windows)
      .set("schedule", schedule)
      .set("sources", sources)
      .set("by_ranks", ranks);
}

}  // namespace swax
