// The file thread: writes COMMITTED and runs retention, one command after the other, and says what
// came of each. Slow disks hold up checkpoints here, never the state machine.
// Threads: post may be called from any thread; build_manifest is pure.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "coordinator/core/types.h"
#include "proto/base/status.h"

namespace swax::coord {

// COMMITTED's content from the reports of all ranks: what rank 0 says of the run, the shards, and
// the tensors' digests, which are the sums of the ranks' parts modulo 2^64. kInvalidArgument when
// the reports do not belong together.
Result<pb::CheckpointManifest> build_manifest(const WriteCommitted& command, int64_t committed_ms);

class CheckpointFiles {
 public:
  // `done` is called by the file thread, once for each command; for FindCommitted once for each
  // checkpoint that it finds.
  CheckpointFiles(std::string store, std::function<void(EventBody)> done);
  ~CheckpointFiles();  // waits for the command at work; later ones are dropped
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;

  struct Retention {
    Retire command;
    std::vector<SaveKey> known;  // committed ones of the job's records
  };
  using Work = std::variant<WriteCommitted, Retention, FindCommitted>;
  void post(Work work);

 private:
  void run();
  CommittedWritten write(const WriteCommitted& command) const;
  Retired retire(const Retention& retention) const;
  std::vector<CommittedWritten> find(const FindCommitted& command) const;
  std::string root(const std::string& job) const;

  const std::string store_;
  const std::function<void(EventBody)> done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  bool stopped_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace swax::coord
