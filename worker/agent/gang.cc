#include "worker/agent/gang.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "worker/agent/attempt_folder.h"
#include "worker/agent/mpirun.h"

namespace swax {
namespace {

constexpr int64_t kLookMs = 10;   // between looks for ranks that are not up yet
constexpr int64_t kReadMs = 500;  // between looks at mpirun's output
constexpr int64_t kKillAgainMs = 100;
constexpr int64_t kMissedMs = 5'000;        // mpirun starts all ranks within milliseconds
constexpr int64_t kLaunchLimitMs = 60'000;  // until the first rank shows up
constexpr int64_t kOrderlyMs = 10'000;      // all ranks leave together; this is for slow disks
constexpr int64_t kFailureMs = 300;         // others may be about to write their own reason
constexpr int64_t kUnknownMs = 1'000;       // for an end that nothing explains yet
constexpr int64_t kReapMs = 1'000;          // mpirun ends by itself after an orderly end
constexpr int kSignalMax = 31;              // higher codes than 128 + that are mpirun's own
constexpr int64_t kOutputBytesMax = 4 * kMiB;

bool orderly(int status) {
  if (!WIFEXITED(status)) return false;
  const int code = WEXITSTATUS(status);
  return code == kRankDone || code == kRankLeft || code == kRankNotFinite;
}

std::string who(int rank) { return rank < 0 ? "a rank" : "rank " + to_text(rank); }

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + to_text(signal);
}

GangEnd::Kind kind_of_code(int code) {
  switch (code) {
    case kRankDone:
      return GangEnd::Kind::kDone;
    case kRankLeft:
      return GangEnd::Kind::kLeft;
    case kRankNotFinite:
      return GangEnd::Kind::kNotFinite;
    case kRankBadInput:
      return GangEnd::Kind::kBadInput;
    default:
      return code > 128 && code <= 128 + kSignalMax ? GangEnd::Kind::kSignal : GangEnd::Kind::kExit;
  }
}

}  // namespace

const char* kind_name(GangEnd::Kind kind) {
  switch (kind) {
    case GangEnd::Kind::kDone:
      return "done";
    case GangEnd::Kind::kLeft:
      return "left";
    case GangEnd::Kind::kNotFinite:
      return "not_finite";
    case GangEnd::Kind::kBadInput:
      return "bad_input";
    case GangEnd::Kind::kExit:
      return "exit";
    case GangEnd::Kind::kSignal:
      return "signal";
    case GangEnd::Kind::kStopped:
      return "stopped";
    case GangEnd::Kind::kLaunch:
      return "launch";
  }
  return "?";
}

Result<std::unique_ptr<Gang>> Gang::start(const GangPlan& plan, Clock& clock) {
  SWAX_ASSIGN(Child mpirun, Child::start(plan.launch));
  return std::unique_ptr<Gang>(new Gang(plan, std::move(mpirun), clock));
}

Gang::Gang(GangPlan plan, Child mpirun, Clock& clock)
    : plan_(std::move(plan)), mpirun_(std::move(mpirun)), clock_(clock) {
  started_ms_ = clock_.monotonic_ms();
}

Gang::~Gang() {
  if (!ended()) kill("given up");
}

void Gang::wait(int64_t limit_ms, int extra_fd) {
  if (ended()) return;
  std::vector<pollfd> fds;
  fds.push_back({.fd = mpirun_.process().get(), .events = POLLIN, .revents = 0});
  if (extra_fd >= 0) fds.push_back({.fd = extra_fd, .events = POLLIN, .revents = 0});
  for (const Rank& rank : ranks_)
    if (!rank.ended) fds.push_back({.fd = rank.process.get(), .events = POLLIN, .revents = 0});
  const bool incomplete = ranks_seen() < plan_.ranks;
  int64_t wait_ms = incomplete ? std::min(limit_ms, kLookMs) : limit_ms;
  const int64_t now_ms = clock_.monotonic_ms();
  for (const auto& deadline : {kill_at_ms_, reap_at_ms_})
    if (deadline) wait_ms = std::clamp<int64_t>(*deadline - now_ms, 1, wait_ms);
  ::poll(fds.data(), fds.size(), static_cast<int>(wait_ms));
  look_at_ranks();
  if (incomplete && clock_.monotonic_ms() >= next_look_ms_) look_for_ranks();
  decide();
}

// Ranks are children of mpirun that have exec'ed: from then on their environment names their rank.
void Gang::look_for_ranks() {
  const int64_t now_ms = clock_.monotonic_ms();
  next_look_ms_ = now_ms + kLookMs;
  for (const ProcessStat& p : child_processes(mpirun_.id().pid)) {
    if (ranks_seen() >= plan_.ranks) break;
    const bool known = std::any_of(ranks_.begin(), ranks_.end(),
                                   [&p](const Rank& rank) { return rank.id == p.id; });
    if (known) continue;
    Rank rank;
    rank.id = p.id;
    if (p.state != 'Z') {
      const std::string environment = process_environment(p.id.pid).value_or("");
      const auto number = environment_value(environment, "OMPI_COMM_WORLD_RANK");
      if (!number) continue;
      std::from_chars(number->data(), number->data() + number->size(), rank.number);
    }
    rank.process = open_process(p.id);
    if (!rank.process.valid()) continue;
    last_found_ms_ = now_ms;
    ranks_.push_back(std::move(rank));
  }
  look_at_ranks();
}

void Gang::look_at_ranks() {
  for (Rank& rank : ranks_) {
    if (!rank.ended && process_ended(rank.process)) note_end(&rank);
    // The status may show only after mpirun has reaped the rank.
    if (rank.ended && !rank.status) rank.status = ended_status(rank.process, rank.id);
  }
}

void Gang::note_end(Rank* rank) {
  rank->ended = true;
  rank->ended_ms = clock_.monotonic_ms();
  rank->status = ended_status(rank->process, rank->id);
  order_.push_back(static_cast<size_t>(rank - ranks_.data()));
}

bool Gang::all_ended() const {
  return ranks_seen() == plan_.ranks &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.ended; });
}

// A rank that ended before we saw it is never found once mpirun has reaped it.
bool Gang::nobody_runs() const {
  if (all_ended()) return true;
  return !ranks_.empty() && clock_.monotonic_ms() - last_found_ms_ > kUnknownMs &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.ended; });
}

void Gang::decide() {
  const int64_t now_ms = clock_.monotonic_ms();
  if (mpirun_.ended()) return finish();
  if (ranks_.empty() && now_ms - started_ms_ > kLaunchLimitMs) return finish();
  if (ranks_seen() < plan_.ranks && now_ms >= next_read_ms_) {
    next_read_ms_ = now_ms + kReadMs;
    const bool missed = !ranks_.empty() && now_ms - last_found_ms_ > kMissedMs;
    if (missed || mpirun_gave_up()) return finish();
  }
  if (order_.empty()) return;
  const Rank& first = ranks_[order_.front()];
  int64_t grace_ms = kUnknownMs;
  if (first.status && orderly(*first.status)) {
    grace_ms = kOrderlyMs;
  } else if (first.status) {
    grace_ms = WIFSIGNALED(*first.status) ? 0 : kFailureMs;
  }
  if (!kill_at_ms_ || first.ended_ms + grace_ms < *kill_at_ms_)
    kill_at_ms_ = first.ended_ms + grace_ms;
  if (now_ms >= *kill_at_ms_) {
    kill_ranks();
    kill_at_ms_ = now_ms + kKillAgainMs;
  }
  if (!nobody_runs()) return;
  // An mpirun that saw disorder sleeps for its sigkill timeout though nobody is left to be killed.
  const bool tidy = first.status == std::optional<int>(0);
  if (!reap_at_ms_) reap_at_ms_ = now_ms + (tidy ? kReapMs : first.status ? 0 : kUnknownMs);
  if (now_ms >= *reap_at_ms_) finish();
}

void Gang::kill_ranks() {
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    rank.killed = true;
    signal_process(rank.process, SIGKILL);
  }
}

void Gang::ask_to_leave() {
  for (const Rank& rank : ranks_)
    if (!rank.ended) signal_process(rank.process, SIGUSR1);
}

void Gang::kill(const std::string& reason) {
  if (ended()) return;
  if (order_.empty()) stopped_ = reason;
  kill_ranks();
  finish();
}

// The first end in disorder. Mpirun answers it with SIGTERM to the others, so a SIGTERM counts only
// when there is nothing else.
const Gang::Rank* Gang::blamed() const {
  const Rank* weak = nullptr;
  for (const size_t i : order_) {
    const Rank& rank = ranks_[i];
    if (rank.killed) continue;
    const bool clean = rank.status && orderly(*rank.status);
    const bool by_mpirun =
        rank.status && WIFSIGNALED(*rank.status) && WTERMSIG(*rank.status) == SIGTERM;
    if (!clean && !by_mpirun) return &rank;
    if (weak == nullptr) weak = &rank;
  }
  return weak;
}

GangEnd Gang::end_of_rank(const Rank& rank) const {
  GangEnd end;
  end.first_rank = rank.number;
  const std::vector<RankFailure> failures = read_failures(plan_.attempt_folder);
  const auto own = std::find_if(failures.begin(), failures.end(),
                                [&rank](const RankFailure& f) { return f.rank == rank.number; });
  const RankFailure* failure = own != failures.end() ? &*own
                               : failures.empty()    ? nullptr
                                                     : &failures.front();
  // A rank that had ended when it was first seen no longer tells its number.
  if (rank.number < 0 && failure != nullptr) end.first_rank = failure->rank;
  if (!rank.status) {
    end.kind = failure != nullptr ? GangEnd::Kind::kExit : GangEnd::Kind::kSignal;
    if (failure != nullptr) end.exit_code = kRankRetry;
  } else if (WIFEXITED(*rank.status)) {
    const int code = WEXITSTATUS(*rank.status);
    end.kind = kind_of_code(code);
    if (end.kind == GangEnd::Kind::kSignal) end.signal = code - 128;
    if (end.kind != GangEnd::Kind::kSignal) end.exit_code = code;
  } else {
    end.kind = GangEnd::Kind::kSignal;
    end.signal = WTERMSIG(*rank.status);
  }
  if (failure != nullptr && end.kind != GangEnd::Kind::kDone) {
    end.reason = failure->reason;
  } else if (end.kind == GangEnd::Kind::kSignal) {
    end.reason = who(rank.number) + " was killed by " +
                 (end.signal != 0 ? signal_text(end.signal) : std::string("a signal"));
  } else if (end.kind == GangEnd::Kind::kExit || end.kind == GangEnd::Kind::kBadInput) {
    end.reason = who(rank.number) + " ended with exit code " + to_text(end.exit_code);
  }
  return end;
}

// Mpirun ended, or nothing of the ranks is known.
GangEnd Gang::end_without_rank(int mpirun_status) const {
  GangEnd end;
  const std::vector<RankFailure> failures = read_failures(plan_.attempt_folder);
  const std::string output = read_file(plan_.launch.output_path, kOutputBytesMax).ok()
                                 ? *read_file(plan_.launch.output_path, kOutputBytesMax)
                                 : std::string();
  const auto verdict = parse_mpirun_output(output);
  if (verdict) {
    end.first_rank = verdict->rank;
    end.signal = verdict->signal;
    end.exit_code = verdict->exit_code;
    end.kind = verdict->signal != 0 ? GangEnd::Kind::kSignal : kind_of_code(verdict->exit_code);
    end.reason = who(verdict->rank) +
                 (verdict->signal != 0 ? " was killed by " + signal_text(verdict->signal)
                                       : " ended with exit code " + to_text(verdict->exit_code));
  } else if (WIFSIGNALED(mpirun_status)) {
    end.kind = GangEnd::Kind::kSignal;
    end.signal = WTERMSIG(mpirun_status);
    end.reason = "mpirun was killed by " + signal_text(end.signal);
  } else {
    end.exit_code = WEXITSTATUS(mpirun_status);
    end.kind = kind_of_code(end.exit_code);
    end.reason = "mpirun ended with exit code " + to_text(end.exit_code);
  }
  if (!failures.empty() && end.kind != GangEnd::Kind::kDone) {
    end.first_rank = failures.front().rank;
    end.reason = failures.front().reason;
  }
  return end;
}

// Its last words, long before its end. Only asked while ranks are missing: they ended unseen.
bool Gang::mpirun_gave_up() const {
  const auto output = read_file(plan_.launch.output_path, kOutputBytesMax);
  return output.ok() && (output->find("the job has been aborted") != std::string::npos ||
                         parse_mpirun_output(*output).has_value());
}

// A rank ended before it was seen, and mpirun reaped it: nobody knows how, but for what it left.
GangEnd Gang::end_of_launch() const {
  GangEnd end;
  end.reason = "only " + to_text(ranks_seen()) + " of " + to_text(plan_.ranks) + " ranks came up";
  const std::vector<RankFailure> failures = read_failures(plan_.attempt_folder);
  if (failures.empty()) return end;
  end.first_rank = failures.front().rank;
  end.reason = failures.front().reason;
  return end;
}

void Gang::finish() {
  const bool mpirun_ended = mpirun_.ended();
  look_at_ranks();
  // Ranks that go on without mpirun, or that nobody saw.
  const bool seen_to_end = !order_.empty();
  kill_ranks();
  const int status = mpirun_.end();
  look_at_ranks();
  const Rank* rank = blamed();
  const bool rank_tidy = rank != nullptr && rank->status && orderly(*rank->status);
  if (stopped_) {
    end_ = GangEnd{.kind = GangEnd::Kind::kStopped, .reason = *stopped_};
  } else if (!mpirun_ended && !seen_to_end) {
    end_ = end_of_launch();
  } else if (rank == nullptr) {
    end_ = end_without_rank(status);
  } else if (rank_tidy && ranks_seen() < plan_.ranks) {
    end_ = mpirun_ended ? end_without_rank(status) : end_of_rank(*rank);
  } else {
    end_ = end_of_rank(*rank);
  }
  if (end_->kind == GangEnd::Kind::kDone && !all_ended() && !mpirun_ended)
    end_ = GangEnd{.kind = GangEnd::Kind::kExit,
                   .exit_code = kRankRetry,
                   .reason = "only some ranks ended as done"};
}

}  // namespace swax
