// One simulated world: virtual time, an ordered queue of events, one random stream, a rolling hash
// of all that happened, counts of faults, and the first violation of an invariant. Threads: one
// world, one thread; worlds share nothing.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/hash.h"
#include "proto/base/rng.h"

namespace swax::sim {

enum class Fault {
  kDrop,
  kDuplicate,
  kReorder,
  kPartitionOneWay,
  kPartitionFull,
  kAgentCrash,
  kAgentCrashReceive,
  kAgentCrashJournal,
  kAgentCrashSynced,
  kAgentCrashSend,
  kAgentCrashSent,
  kAgentWriteLost,
  kAgentWriteTorn,
  kAgentPause,
  kAgentStop,
  kRankCrash,
  kRankCrashReceive,
  kRankCrashJournal,
  kRankCrashSend,
  kRankExit,
  kRankHang,
  kSaveFailed,
  kCrashReceive,
  kCrashJournal,
  kCrashSend,
  kWriteLost,
  kWriteTorn,
  kCommitFailed,
  kCoordinatorPause,
  kClockJump,
  kImpostor,
  kOutage,
  kCount
};
constexpr size_t kFaults = static_cast<size_t>(Fault::kCount);
const char* fault_name(Fault fault);
using FaultCounts = std::array<uint64_t, kFaults>;

// Bugs planted on purpose, in the simulated shells: the checkers must find each.
enum class Canary {
  kNone,
  kSendBeforeSync,
  kOldEpochAccepted,
  kCommitRankMissing,
  kCommandNotRepeated,
  kRetentionBeforeCommit,
  kBudgetResetByHello,
  kAgentNotSynced,
  kCount
};

constexpr size_t kCanaries = static_cast<size_t>(Canary::kCount);

class World {
 public:
  World(uint64_t seed, Canary canary, bool trace) : seed_(seed), canary_(canary), trace_(trace) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  uint64_t seed() const { return seed_; }
  Canary canary() const { return canary_; }
  int64_t now() const { return now_; }
  int64_t wall() const { return now_ + wall_offset_; }
  void jump_wall(int64_t ms) { wall_offset_ += ms; }

  void after(int64_t delay_ms, std::function<void()> run);
  // Runs events until `end_ms`, `done()` or a violation.
  void run_until(int64_t end_ms, const std::function<bool()>& done);
  uint64_t events() const { return events_; }

  // Random numbers of this world, in order.
  uint32_t word();
  uint64_t below(uint64_t n) { return n == 0 ? 0 : word() % n; }
  int64_t between(int64_t low, int64_t high);  // inclusive
  bool chance(double p) { return p > 0 && unit_open_closed(word()) <= p; }

  void mix(uint64_t value) { hash_ = mix_bits(hash_ ^ (value + 0x9e3779b97f4a7c15ULL)); }
  void mix(std::string_view text) { mix(xxh3_64(text)); }
  uint64_t hash() const { return hash_; }

  bool tracing() const { return trace_; }
  void trace(const std::string& line) const;

  bool faults_on() const { return faults_on_; }
  void stop_faults() { faults_on_ = false; }
  void fired(Fault fault);
  const FaultCounts& counts() const { return counts_; }

  void violation(std::string_view checker, const std::string& text);
  bool violated() const { return !checker_.empty(); }
  const std::string& checker() const { return checker_; }
  const std::string& violation_text() const { return violation_; }

 private:
  struct Item {
    int64_t at;
    uint64_t order;
    std::function<void()> run;
  };
  static bool later(const Item& a, const Item& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }

  const uint64_t seed_;
  const Canary canary_;
  const bool trace_;
  int64_t now_ = 0, wall_offset_ = 1'700'000'000'000;
  uint64_t order_ = 0, events_ = 0;
  std::vector<Item> queue_;  // heap
  uint64_t drawn_ = 0;
  PhiloxBlock block_{};
  uint64_t hash_ = 0;
  bool faults_on_ = true;
  FaultCounts counts_{};
  std::string checker_, violation_;
};

}  // namespace swax::sim
