// The durable state of a run: its RunRecord and events in STATE/run.db. Changes are collected and
// reach the disk together, in one batch, by write(). One process at a time (run.lock).
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/cli/state_dir.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/record.pb.h"
#include "storage/kv.h"

namespace swax {

using EventFields = std::vector<std::pair<std::string, std::string>>;

class RunJournal {
 public:
  // kDataLoss: stored bytes are damaged; kUnavailable: another process has it open.
  static Result<std::unique_ptr<RunJournal>> open(const StateDir& state, Clock& clock);
  bool has_run() const { return has_run_; }
  void begin_run(pb::RunRecord run);  // has_run() from now on
  pb::RunRecord& run() { return run_; }
  const pb::RunRecord& run() const { return run_; }

  // Gives the event its sequence, and the time if it has none.
  const pb::EventRecord& add(pb::EventRecord event);
  const pb::EventRecord& add(std::string_view kind, uint64_t step, std::string text,
                             const EventFields& fields = {});
  // The newest attempt has started and its end is not recorded: whoever ran it died.
  bool attempt_is_open() const { return has_run_ && run_.epoch() > ended_epoch_; }
  // How many bytes of the attempt's record log have been taken over into events.
  uint64_t tail(uint64_t epoch) const;
  void set_tail(uint64_t epoch, uint64_t bytes);
  // What failed stays collected: the next write tries it again.
  Status write(bool sync);

 private:
  RunJournal(std::unique_ptr<Kv> db, Clock& clock) : db_(std::move(db)), clock_(clock) {}
  Status load();

  std::unique_ptr<Kv> db_;
  Clock& clock_;
  bool has_run_ = false;
  pb::RunRecord run_;
  uint64_t next_sequence_ = 1;
  uint64_t ended_epoch_ = 0;
  std::vector<pb::EventRecord> unwritten_;
  std::map<uint64_t, uint64_t> tails_;
};

}  // namespace swax
