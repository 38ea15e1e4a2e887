#include "ops/cli/run_follow.h"

#include <algorithm>
#include <bit>

#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kWriteMs = 1000;         // between unsynced writes of the progress
constexpr uint64_t kDivergencesShown = 3;  // of an attempt; more are counted
constexpr double kNewestWeight = 0.1;      // of a step in the running mean of step times

}  // namespace

ReportFollower::ReportFollower(const StateDir& state, uint64_t epoch, RunJournal& journal,
                               StepBits& bits, Clock& clock,
                               std::function<void(const pb::EventRecord&)> on_event)
    : path_(state.records_path(epoch)),
      epoch_(epoch),
      journal_(journal),
      bits_(bits),
      clock_(clock),
      on_event_(std::move(on_event)),
      known_bytes_(journal.tail(epoch)) {
  progress_.heard_ms = clock.monotonic_ms();
}

void ReportFollower::poll() {
  if (damaged_) return;
  if (!reader_) {
    Result<RecordLogReader> opened = RecordLogReader::open(path_);
    if (!opened.ok()) return;  // not there yet
    reader_ = std::move(opened).value();
  }
  std::string payload;
  fresh_events_ = false;
  for (;;) {
    const Result<bool> more = reader_->next(&payload);
    pb::RankReport report;
    if (more.ok() && !*more) break;
    if (!more.ok() || !report.ParseFromString(payload)) {
      damaged_ = true;
      pb::EventRecord event;
      event.set_kind("records_damaged");
      event.set_epoch(epoch_);
      event.set_text(more.ok() ? path_ + ": a report cannot be read" : more.status().message());
      add_event(event);
      break;
    }
    progress_.heard_ms = clock_.monotonic_ms();
    take(report);
  }
  const auto offset = static_cast<uint64_t>(reader_->offset());
  if (offset > known_bytes_) journal_.set_tail(epoch_, offset);
  const int64_t now_ms = clock_.monotonic_ms();
  const bool due = offset > known_bytes_ && now_ms - written_ms_ >= kWriteMs;
  if (!fresh_events_ && !due) return;
  written_ms_ = now_ms;
  if (const Status s = journal_.write(fresh_events_); !s.ok())
    log_warn("run", "events not written yet", {{"reason", s.message()}});
}

void ReportFollower::take(const pb::RankReport& report) {
  // Steps of a log that was followed before are taken again, for the numbers; events are not.
  const bool known = static_cast<uint64_t>(reader_->offset()) <= known_bytes_;
  switch (report.kind_case()) {
    case pb::RankReport::kHello:
      progress_.hello = report.hello();
      journal_.run().set_fingerprint(report.hello().fingerprint());
      break;
    case pb::RankReport::kStep:
      take_step(report.step());
      break;
    case pb::RankReport::kValidation:
      if (!known) take_validation(report.validation());
      break;
    case pb::RankReport::kEvent:
      if (!known) add_event(report.event());
      break;
    case pb::RankReport::kDone:
      progress_.done = report.done();
      break;
    case pb::RankReport::KIND_NOT_SET:
      break;
  }
}

void ReportFollower::take_step(const pb::StepRecord& step) {
  pb::RunRecord& run = journal_.run();
  const auto step_ns = static_cast<double>(step.step_ns());
  // The first step of an attempt warms caches and is no measure.
  if (progress_.step && step_ns > 0.0) {
    const double mean = progress_.step_ns;
    progress_.step_ns = mean == 0.0 ? step_ns : mean + kNewestWeight * (step_ns - mean);
    progress_.tokens_per_s = static_cast<double>(step.tokens()) * 1e9 / progress_.step_ns;
    run.set_tokens_per_s(progress_.tokens_per_s);
  }
  progress_.slowest_step_ms = std::max(progress_.slowest_step_ms, step.step_ns() / 1'000'000);
  progress_.step = step;
  progress_.step->clear_digests();
  run.set_loss_bits(step.loss_bits());
  if (step.step() > run.progress_step()) {
    run.set_progress_step(step.step());
    progress_.progressed = true;
  }
  const std::optional<Divergence> difference = bits_.add(step);
  if (!difference) return;
  if (++progress_.divergences > kDivergencesShown) return;
  pb::EventRecord event;
  event.set_kind("diverged");
  event.set_step(difference->step);
  event.set_text("attempts " + to_text(difference->earlier_epoch) + " and " +
                 to_text(difference->later_epoch) + " disagree: " + difference->text);
  auto& fields = *event.mutable_fields();
  fields["earlier_attempt"] = to_text(difference->earlier_epoch);
  fields["later_attempt"] = to_text(difference->later_epoch);
  add_event(event);
}

void ReportFollower::take_validation(const pb::ValidationRecord& validation) {
  const double loss = std::bit_cast<double>(validation.loss_bits());
  const double bpb = std::bit_cast<double>(validation.bpb_bits());
  journal_.run().set_validation_bpb_bits(validation.bpb_bits());
  pb::EventRecord event;
  event.set_kind("validation");
  event.set_step(validation.step());
  event.set_text(fixed_text(bpb, 4) + " bits per byte, loss " + fixed_text(loss, 4) +
                 (validation.final() ? ", all held-out text" : ""));
  auto& fields = *event.mutable_fields();
  fields["loss"] = to_text(loss);
  fields["bits_per_byte"] = to_text(bpb);
  fields["final"] = validation.final() ? "true" : "false";
  add_event(event);
}

void ReportFollower::add_event(const pb::EventRecord& event) {
  if (event.kind() == "checkpoint_committed") {
    pb::RunRecord& run = journal_.run();
    run.set_restarts_since_commit(0);
    run.set_no_progress(0);
    progress_.progressed = true;
    progress_.committed_step = event.step();
    progress_.committed_wall_ms = event.wall_ms() != 0 ? event.wall_ms() : clock_.wall_ms();
  }
  pb::EventRecord copy = event;
  copy.set_epoch(epoch_);
  fresh_events_ = true;
  on_event_(journal_.add(std::move(copy)));
}

}  // namespace swax
