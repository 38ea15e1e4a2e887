#include "ops/cli/run_result.h"

#include <bit>
#include <cmath>
#include <optional>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/text.h"
#include "storage/checkpoint_store.h"

namespace swax {
namespace {

constexpr int kSchemaVersion = 1;

// Zero bits stand for "never reported": no loss and no bits-per-byte of a text is exactly 0.
std::optional<double> reported(uint64_t bits) {
  const double value = std::bit_cast<double>(bits);
  if (bits == 0 || !std::isfinite(value)) return std::nullopt;
  return value;
}

Json number(std::optional<double> value) { return value ? Json(*value) : Json(); }
Json word(const std::string& value) { return value.empty() ? Json() : Json(value); }

std::vector<CheckpointEntry> whole_checkpoints(const StateDir& state, const RunInfo& run) {
  std::vector<CheckpointEntry> whole;
  const auto all = list_checkpoints(state.checkpoints_folder(run.spec.job().name()));
  if (!all.ok()) return whole;
  for (const CheckpointEntry& entry : *all)
    if (entry.committed && entry.problem.empty()) whole.push_back(entry);
  return whole;
}

std::string row(const std::string& name, const std::string& value) {
  return name + std::string(name.size() < 14 ? 14 - name.size() : 1, ' ') + value + "\n";
}

}  // namespace

int exit_code_of_run(const RunInfo& run) {
  if (run.state == "SUCCEEDED") return kExitOk;
  if (run.state == "FAILED") return kExitJobFailed;
  if (run.state == "CANCELLED") return kExitJobCancelled;
  return -1;
}

std::string run_summary_text(const StateDir& state, const RunInfo& run) {
  std::string text = row("job", run.spec.job().name() + "  " + run.state);
  if (!run.reason.empty()) text += row("reason", one_line(run.reason, 1000));
  text += row("step", to_text(uint64_t{run.progress_step}) + " of " +
                          to_text(uint64_t{run.spec.training().steps()}));
  if (const auto loss = reported(run.loss_bits))
    text += row("loss", fixed_text(*loss, 4) + " nats per token");
  if (const auto bpb = reported(run.validation_bpb_bits))
    text += row("validation", fixed_text(*bpb, 4) + " bits per byte");
  else if (run.state == "SUCCEEDED")
    text += row("validation", "none: too little held-out text");
  if (!run.digest.empty()) text += row("digest", run.digest);
  if (run.tokens_per_s > 0.0)
    text += row("speed", group_digits(static_cast<int64_t>(run.tokens_per_s)) + " tokens/s");
  text += row("attempts", to_text(uint64_t{run.epoch}));
  const std::vector<CheckpointEntry> checkpoints = whole_checkpoints(state, run);
  std::string steps;
  for (auto entry = checkpoints.rbegin(); entry != checkpoints.rend(); ++entry)
    steps += (steps.empty() ? "" : ", ") + to_text(uint64_t{entry->name.step});
  text += row("checkpoints", steps.empty() ? "none" : "step " + steps);
  if (!steps.empty()) text += row("", state.checkpoints_folder(run.spec.job().name()));
  text += row("state", state.root());
  return text;
}

Json run_summary_json(const StateDir& state, const RunInfo& run) {
  Json checkpoint;
  const std::vector<CheckpointEntry> checkpoints = whole_checkpoints(state, run);
  if (!checkpoints.empty()) {
    checkpoint = Json::object();
    checkpoint.set("step", uint64_t{checkpoints.front().name.step})
        .set("committed_at", utc_text(checkpoints.front().manifest.committed_ms()).text);
  }
  const bool reported_speed = run.tokens_per_s > 0.0;
  Json json = Json::object();
  json.set("schema_version", kSchemaVersion)
      .set("job", run.spec.job().name())
      .set("name", run.spec.job().name())
      .set("state", run.state)
      .set("reason", word(run.reason))
      .set("step", uint64_t{run.progress_step})
      .set("total_steps", uint64_t{run.spec.training().steps()})
      .set("loss", number(reported(run.loss_bits)))
      .set("validation_bpb", number(reported(run.validation_bpb_bits)))
      .set("tokens_per_s", reported_speed ? Json(run.tokens_per_s) : Json())
      .set("digest", word(run.digest))
      .set("attempt", uint64_t{run.epoch})
      .set("restarts", uint64_t{run.epoch > 0 ? run.epoch - 1 : 0})
      .set("checkpoint", checkpoint)
      .set("state_dir", state.root());
  return json;
}

void print_run_result(const StateDir& state, const RunInfo& run, const std::string& output) {
  if (output == "json") {
    print_line(run_summary_json(state, run).text(false));
  } else {
    print(run_summary_text(state, run));
  }
}

}  // namespace swax
