// One attempt as processes: mpirun and its ranks. Mpirun takes seconds to notice a dead rank and up
// to two minutes to end the others (they wait in a collective and may not die of SIGTERM), so the
// gang watches every rank itself: the first that ends in disorder is blamed and the others are
// killed at once.
// The caller's loop: while (!gang.ended()) gang.wait(...). Threads: all calls from the thread that
// called start(); the processes die with that thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "worker/agent/child.h"
#include "worker/agent/process.h"

namespace swax {

// Exit codes of a rank to its launcher.
constexpr int kRankDone = 0, kRankRetry = 75, kRankBadInput = 78, kRankNotFinite = 93,
              kRankLeft = 99;

struct GangEnd {
  enum class Kind {
    kDone,       // every rank says so
    kLeft,       // checkpointed and left on request
    kNotFinite,  // loss or gradient; another attempt would give the same
    kBadInput,   // spec or data; another attempt would give the same
    kExit,       // another exit code of its own
    kSignal,     // a rank or mpirun was killed
    kStopped,    // kill() of ours
    kLaunch,     // the ranks did not come up
  };
  Kind kind = Kind::kLaunch;
  int first_rank = -1;  // blamed; -1: nobody, or mpirun
  int exit_code = 0;    // of kExit, kBadInput, kNotFinite
  int signal = 0;       // of kSignal; 0: unknown which
  std::string reason;   // one line: what the rank left as its reason, or what is known
};
const char* kind_name(GangEnd::Kind kind);

struct GangPlan {
  LaunchSpec launch;  // mpirun
  int ranks = 1;
  std::string attempt_folder;  // where failing ranks leave their reason
};

class Gang {
 public:
  static Result<std::unique_ptr<Gang>> start(const GangPlan& plan, Clock& clock);
  ~Gang();  // kills what is left
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  // Waits until a process ended, extra_fd is readable, or limit_ms is over. extra_fd may be -1.
  void wait(int64_t limit_ms, int extra_fd);
  bool ended() const { return end_.has_value(); }
  const GangEnd& end() const { return *end_; }
  // SIGUSR1 to the ranks. One that is not yet ready to hear it may miss it: repeat it now and then.
  void ask_to_leave();
  // SIGKILL to everything; ended() is true afterwards unless the end was known before.
  void kill(const std::string& reason);
  int ranks_seen() const { return static_cast<int>(ranks_.size()); }

 private:
  struct Rank {
    ProcessId id;
    Fd process;
    int number = -1;  // unknown when it ended before we saw it
    bool ended = false;
    bool killed = false;  // by us, after somebody else's end
    std::optional<int> status;
    int64_t ended_ms = 0;
  };

  Gang(GangPlan plan, Child mpirun, Clock& clock);
  void look_for_ranks();
  void look_at_ranks();
  void decide();
  void note_end(Rank* rank);
  void kill_ranks();
  void finish();
  bool all_ended() const;
  bool nobody_runs() const;
  const Rank* blamed() const;
  GangEnd end_of_rank(const Rank& rank) const;
  GangEnd end_without_rank(int mpirun_status) const;
  GangEnd end_of_launch() const;
  bool mpirun_gave_up() const;

  GangPlan plan_;
  Child mpirun_;
  Clock& clock_;
  std::vector<Rank> ranks_;
  std::vector<size_t> order_;  // of ends
  int64_t started_ms_ = 0;
  int64_t last_found_ms_ = 0;
  int64_t next_look_ms_ = 0;
  int64_t next_read_ms_ = 0;
  std::optional<int64_t> kill_at_ms_;   // the ranks that are left
  std::optional<int64_t> reap_at_ms_;   // mpirun, once no rank runs
  std::optional<std::string> stopped_;  // kill() and why
  std::optional<GangEnd> end_;
};

}  // namespace swax
