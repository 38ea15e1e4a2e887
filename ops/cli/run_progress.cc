#include "ops/cli/run_progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <string_view>

#include "ops/cli/output.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kRedrawMs = 200;
constexpr size_t kTextBytesMax = 2000;

// Plain lines come often at first and rarely in a run of hours.
int64_t plain_interval_ms(int64_t running_ms) {
  if (running_ms < 60'000) return 2'000;
  return running_ms < 600'000 ? 10'000 : 60'000;
}

size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

RunProgress::RunProgress(bool terminal, uint64_t total_steps, Clock& clock)
    : terminal_(terminal),
      total_steps_(total_steps),
      clock_(clock),
      started_ms_(clock.monotonic_ms()) {}

RunProgress::~RunProgress() { clear(); }

void RunProgress::clear() {
  if (drawn_) write_stderr("\r\x1b[K");
  drawn_ = false;
}

void RunProgress::say(const std::string& line) {
  clear();
  write_stderr(one_line(line, kTextBytesMax) + "\n");
}

void RunProgress::event(const pb::EventRecord& event) {
  const std::string step = event.step() > 0 ? " step " + to_text(uint64_t{event.step()}) : "";
  std::string text = event.kind();
  constexpr std::string_view kAttempt = "attempt_";
  if (text.starts_with(kAttempt)) {
    text = "attempt " + to_text(uint64_t{event.epoch()}) + " " + text.substr(kAttempt.size()) +
           (step.empty() ? "" : " at" + step);
  } else {
    std::replace(text.begin(), text.end(), '_', ' ');
    text += step;
  }
  if (!event.text().empty()) text += ": " + event.text();
  say(text);
}

bool RunProgress::due(uint64_t step, int64_t now_ms) const {
  if (terminal_) return now_ms - shown_ms_ >= kRedrawMs;
  if (step == shown_step_) return false;
  const uint64_t tenth = std::max<uint64_t>(1, total_steps_ / 10);
  const bool shown_recently = now_ms - shown_ms_ < plain_interval_ms(now_ms - started_ms_);
  return !shown_recently || step == total_steps_ ||
         (step / tenth != shown_step_ / tenth && now_ms - shown_ms_ >= kRedrawMs);
}

void RunProgress::update(const AttemptProgress& progress) {
  if (!progress.step) return;
  const int64_t now_ms = clock_.monotonic_ms();
  if (!due(progress.step->step(), now_ms)) return;
  shown_ms_ = now_ms;
  shown_step_ = progress.step->step();
  std::string text = line(progress);
  if (!terminal_) return say(text);
  text.resize(std::min(text.size(), terminal_columns() - 1));
  write_stderr("\r" + text + "\x1b[K");
  drawn_ = true;
}

std::string RunProgress::line(const AttemptProgress& progress) const {
  const pb::StepRecord& step = *progress.step;
  std::string text = "step " + to_text(uint64_t{step.step()}) + "/" + to_text(total_steps_) +
                     "  loss " + fixed_text(std::bit_cast<double>(step.loss_bits()), 4) +
                     "  window " + to_text(uint64_t{step.window()});
  if (progress.tokens_per_s > 0.0)
    text += "  " + group_digits(static_cast<int64_t>(progress.tokens_per_s)) + " tok/s";
  if (progress.step_ns > 0.0 && total_steps_ > step.step()) {
    const double left = static_cast<double>(total_steps_ - step.step());
    text += "  left " + duration_text(static_cast<int64_t>(left * progress.step_ns / 1e6));
  }
  if (progress.committed_step > 0) {
    const int64_t age_ms = std::max<int64_t>(0, clock_.wall_ms() - progress.committed_wall_ms);
    text += "  ckpt " + to_text(progress.committed_step) + ", " + duration_text(age_ms) + " ago";
  }
  return text;
}

}  // namespace swax
