// The core thread: takes what arrived, gives it to the core, writes all records of the round in one
// synced batch, and only then lets the commands of the round go, in order. When the batch cannot be
// written (disk full) nothing leaves and nothing more is taken from workers until it could be;
// clients are told why.
// Failpoints: coord.submit_journaled, coord.start_journaled, coord.commit_record_synced; each after
// the batch is synced and before anything leaves.
// Threads: run() is the core thread; busy_ms may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/checkpoint_files.h"
#include "coordinator/core/core.h"
#include "coordinator/journal.h"
#include "coordinator/mailbox.h"
#include "coordinator/socket_loop.h"
#include "proto/base/clock.h"

namespace swax::coord {

class CoreLoop {
 public:
  struct Options {
    Config config;
    std::string state_folder;  // where the journal lies: its free space is watched
  };
  CoreLoop(Options options, State state, std::unique_ptr<Journal> journal, Inbox& inbox,
           Outgoing& outgoing);
  // Both live until run() has returned.
  void attach(SocketLoop& socket, CheckpointFiles& files);
  void run();  // until the inbox is stopped
  int64_t busy_ms() const;

 private:
  struct Query {
    uint64_t peer = 0;
    pb::Envelope envelope;
  };
  using Action = std::variant<Command, Query>;

  void round(std::vector<EventBody> events);
  void take(EventBody event);
  bool begins_something(const pb::Request& request) const;
  bool refused_for_space(const Message& message);
  bool commit();
  void release();
  void release_command(Command command);
  void answer(uint64_t peer, const std::string& request_id, pb::Reply reply);
  void answer_while_stuck(const std::string& why);
  void flush();

  const Config config_;
  const std::string state_folder_;
  State state_;
  const std::unique_ptr<Journal> journal_;
  Inbox& inbox_;
  Outgoing& outgoing_;
  SocketLoop* socket_ = nullptr;
  CheckpointFiles* files_ = nullptr;
  SystemClock clock_;
  std::vector<Action> actions_;          // of this round, in order
  std::vector<Outgoing::Item> sending_;  // released, not yet handed over
  std::vector<EventBody> noted_;         // for the next round
  bool has_submit_ = false, has_start_ = false, has_commit_ = false;  // records of this round
  int64_t next_tick_ms_ = 0;
  int64_t space_checked_ms_ = 0;
  bool space_left_ = true;
  std::atomic<int64_t> busy_since_ms_ = 0;
};

}  // namespace swax::coord
