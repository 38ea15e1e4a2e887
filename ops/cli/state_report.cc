#include "ops/cli/state_report.h"

#include <algorithm>
#include <bit>

#include "ops/cli/state_open.h"
#include "proto/base/text.h"

namespace swax {
namespace {

std::string next_action(const RunReport& report) {
  const RunInfo& run = report.view.run;
  const std::string& state = report.view.run.state;
  if (state == "RUNNING") return "nothing; Ctrl-C where it was started saves and stops it";
  if (state == "SUCCEEDED") return "swax generate --state " + report.root;
  if (state == "HELD")
    return "restore " + StateDir(report.root).coordinator_folder() +
           " from a backup; its checkpoints are untouched: swax generate --state " + report.root;
  if (state == "FAILED")
    return "read the reason and " +
           StateDir(report.root).logs_folder(run.spec.job().name(), run.epoch) +
           "; a new run needs another state folder";
  const std::string from =
      report.last_checkpoint
          ? "the checkpoint of step " + to_text(report.last_checkpoint->name.step)
          : std::string("step 0: there is no checkpoint yet");
  return "type the swax run command again: it goes on from " + from;
}

void take_history(StepHistory history, RunReport* report) {
  for (std::string& problem : history.problems) report->problems.push_back(std::move(problem));
  if (!history.validations.empty()) report->last_validation = history.validations.back();
  if (history.steps.empty()) return;
  report->last_step = history.steps.back();
  report->tokens_per_s = newest_rate(history.steps);
}

void take_checkpoints(const StateDir& state, RunReport* report) {
  auto entries = list_checkpoints(state.checkpoints_folder(report->view.run.spec.job().name()));
  if (!entries.ok()) {
    // A run that has not saved yet has no such folder.
    if (entries.status().code() != Code::kNotFound)
      report->problems.push_back(entries.status().message());
    return;
  }
  for (CheckpointEntry& entry : *entries) {
    if (entry.committed && entry.problem.empty()) {
      ++report->checkpoints;
      if (!report->last_checkpoint) report->last_checkpoint = std::move(entry);
    } else if (entry.committed) {
      report->problems.push_back("checkpoint " + entry.name.folder() + ": " + entry.problem);
    }
  }
}

std::string line(std::string name, const std::string& value) {
  constexpr size_t kValueColumn = 13;
  name.resize(kValueColumn, ' ');
  return name + value + "\n";
}

std::string state_text(const RunReport& report) {
  const std::string& state = report.view.run.state;
  const bool bad = state == "FAILED" || state == "CANCELLED" || state == "HELD";
  std::string text = coloured(state, bad ? Colour::kBad : Colour::kGood);
  const std::string& reason = report.view.run.reason;
  if (!reason.empty()) text += ": " + one_line(reason);
  if (state == "STOPPED") text += ": nobody works on it now";
  return text;
}

std::string progress_text(const RunReport& report) {
  const int64_t steps = static_cast<int64_t>(report.view.run.spec.training().steps());
  const int64_t done =
      report.last_step ? static_cast<int64_t>(report.last_step->step()) : int64_t{0};
  std::string text = "step " + group_digits(done) + " of " + group_digits(steps);
  if (steps > 0)
    text += " (" + fixed_text(100.0 * static_cast<double>(done) / static_cast<double>(steps), 1) +
            " %)";
  return text;
}

std::string speed_text(const RunReport& report) {
  const pb::Training& training = report.view.run.spec.training();
  std::string text = group_digits(static_cast<int64_t>(report.tokens_per_s)) +
                     " tokens a second on " + to_text(uint64_t{report.last_step->world_size()}) +
                     " ranks";
  if (report.view.run.state != "RUNNING") return text;
  const double left =
      static_cast<double>(training.steps() - std::min(report.last_step->step(), training.steps())) *
      static_cast<double>(training.seq_len()) * static_cast<double>(training.global_batch_size());
  return text + ", about " + duration_text(static_cast<int64_t>(left / report.tokens_per_s * 1e3)) +
         " left";
}

std::string step_text(const pb::StepRecord& step) {
  return fixed_text(std::bit_cast<double>(step.loss_bits()), 4) + " nats a target, norm " +
         fixed_text(std::bit_cast<double>(step.norm_bits()), 3) + ", window " +
         to_text(uint64_t{step.window()}) + ", learning rate " + to_text(step.lr());
}

std::string validation_text(const RunReport& report) {
  if (!report.last_validation)
    return report.view.run.state == "SUCCEEDED" ? "none: too little held-out text" : "none yet";
  return fixed_text(std::bit_cast<double>(report.last_validation->bpb_bits()), 4) +
         " bits a byte at step " +
         group_digits(static_cast<int64_t>(report.last_validation->step()));
}

std::string checkpoint_text(const RunReport& report, int64_t now_ms) {
  if (!report.last_checkpoint) return "none yet";
  const CheckpointEntry& last = *report.last_checkpoint;
  int64_t bytes = 0;
  for (const pb::RankShard& shard : last.manifest.ranks())
    bytes += static_cast<int64_t>(shard.bytes());
  const int64_t age_ms = std::max<int64_t>(0, now_ms - last.manifest.committed_ms());
  return "step " + group_digits(static_cast<int64_t>(last.name.step)) + ", " + bytes_text(bytes) +
         ", " + duration_text(age_ms) + " ago; " + to_text(report.checkpoints) + " kept";
}

std::string attempts_text(const RunInfo& run) {
  const uint64_t restarts = run.epoch > 0 ? run.epoch - 1 : 0;
  return to_text(run.epoch) + ", restarts " + to_text(restarts);
}

}  // namespace

Result<RunReport> make_run_report(const std::string& state_folder) {
  RunReport report;
  SWAX_ASSIGN(OpenRun run, open_run(state_folder));
  const StateDir& state = run.state;
  report.root = state_folder;
  report.view = std::move(run.view);
  if (!report.view.held.empty()) report.problems.push_back(report.view.held);
  Result<StepHistory> history = load_step_history(state, report.view.run.spec.job().name());
  if (history.ok()) {
    take_history(std::move(history).value(), &report);
  } else if (history.status().code() != Code::kNotFound) {
    report.problems.push_back(history.status().message());
  }
  take_checkpoints(state, &report);
  report.next = next_action(report);
  return report;
}

std::string run_text(const RunReport& report, int64_t now_ms) {
  const RunInfo& run = report.view.run;
  std::string text = line("run", run.spec.job().name() + " in " + one_line(report.root));
  text += line("state", state_text(report));
  text += line("progress", progress_text(report));
  if (report.last_step) text += line("loss", step_text(*report.last_step));
  if (report.tokens_per_s > 0) text += line("speed", speed_text(report));
  text += line("validation", validation_text(report));
  text += line("checkpoint", checkpoint_text(report, now_ms));
  text += line("attempts", attempts_text(run));
  if (!run.digest.empty()) text += line("digest", run.digest);
  if (!report.view.events.empty()) {
    const pb::EventRecord& event = report.view.events.back();
    text += line("last event", std::string(utc_text(event.wall_ms()).text) + " " +
                                   one_line(event.kind(), 40) + ": " + one_line(event.text()));
  }
  for (const std::string& problem : report.problems)
    text += line("problem", coloured(one_line(problem), Colour::kBad));
  text += line("do", one_line(report.next));
  return text;
}

Json& set_with_bits(Json* object, const std::string& key, double value) {
  return object->set(key, value).set(key + "_bits", hex_bits(value));
}

Json run_json(const RunReport& report) {
  const RunInfo& run = report.view.run;
  Json problems = Json::array();
  for (const std::string& problem : report.problems) problems.push(problem);
  Json json = Json::object();
  json.set("job", run.spec.job().name())
      .set("state_folder", report.root)
      .set("state", report.view.run.state)
      .set("active", report.view.active)
      .set("reason", run.reason)
      .set("steps", run.spec.training().steps())
      .set("step", report.last_step ? Json(report.last_step->step()) : Json(0))
      .set("attempts", run.epoch)
      .set("restarts", run.epoch > 0 ? run.epoch - 1 : uint64_t{0})
      .set("numeric_id", run.numeric_id)
      .set("spec_hash", run.spec_hash)
      .set("digest", run.digest)
      .set("tokens_per_s", report.tokens_per_s)
      .set("checkpoints", report.checkpoints)
      .set("checkpoint_step",
           report.last_checkpoint ? Json(report.last_checkpoint->name.step) : Json())
      .set("problems", problems)
      .set("do", report.next);
  if (report.last_step) {
    set_with_bits(&json, "loss", std::bit_cast<double>(report.last_step->loss_bits()));
    set_with_bits(&json, "norm", std::bit_cast<double>(report.last_step->norm_bits()));
    json.set("window", report.last_step->window()).set("ranks", report.last_step->world_size());
  }
  if (report.last_validation) {
    json.set("validation_step", report.last_validation->step());
    set_with_bits(&json, "validation_bpb",
                  std::bit_cast<double>(report.last_validation->bpb_bits()));
  }
  return json;
}

}  // namespace swax
