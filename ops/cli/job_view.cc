#include "ops/cli/job_view.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/cli/client_events.h"
#include "ops/cli/client_job.h"

namespace swax {
namespace {

constexpr uint64_t kRateSteps = 20;  // newest steps whose mean is the shown speed
// Of use to `events`; here the steps and the other events say the same.
constexpr std::array<std::string_view, 4> kSilentKinds = {"submitted", "attempt_running", "loaded",
                                                          "result"};

bool is_silent(const std::string& kind) {
  return std::find(kSilentKinds.begin(), kSilentKinds.end(), kind) != kSilentKinds.end();
}

}  // namespace

JobView::JobView(ClientSession* session, const Options& options)
    : session_(session),
      progress_(options.terminal, options.total_steps, clock_),
      next_event_(std::max<uint64_t>(1, options.from_event)),
      waiting_(options.waiting) {}

void JobView::show(const pb::JobStatus& job) {
  show_events(job);
  const std::string now = job.state() + job.reason();
  if (waiting_ && now != shown_state_ && job.step() == 0) progress_.say(job_line(job));
  shown_state_ = now;
  if (job.step() > 0 && exit_code_of_job(job) < 0 && progress_.due(job.step())) show_step(job);
}

void JobView::show_events(const pb::JobStatus& job) {
  if (job.events() < next_event_) return;
  const pb::Reply reply = read_events(session_, job.job(), next_event_);
  for (const pb::EventRecord& event : reply.events()) {
    if (!is_silent(event.kind())) progress_.event(event);
    const auto retry = event.fields().find("retry_in");
    if (retry != event.fields().end()) progress_.say("starting again in " + retry->second);
    next_event_ = event.sequence() + 1;
  }
}

void JobView::show_step(const pb::JobStatus& job) {
  pb::Request request;
  request.mutable_steps()->set_job(job.job());
  request.mutable_steps()->set_from_step(job.step() > kRateSteps ? job.step() - kRateSteps : 1);
  request.mutable_steps()->set_limit(4 * kRateSteps);
  const pb::Reply reply = session_->read(request);
  AttemptProgress progress;
  double ns = 0, tokens = 0, count = 0;
  for (const pb::StepRecord& step : reply.steps()) {
    if (step.epoch() != job.epoch()) continue;
    progress.step = step;
    ns += static_cast<double>(step.step_ns());
    tokens += static_cast<double>(step.tokens());
    count += 1;
  }
  if (!progress.step) return;
  progress.step_ns = ns / count;
  if (ns > 0) progress.tokens_per_s = tokens / ns * 1e9;
  progress.committed_step = job.checkpoint_step();
  progress.committed_wall_ms = job.checkpoint_ms();
  progress_.update(progress);
}

}  // namespace swax
