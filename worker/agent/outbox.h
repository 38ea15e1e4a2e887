// The agent's state folder: who it is and what it must not forget.
//   lock                flock of the agent that works here
//   kv/                 meta/node, meta/state_id, meta/incarnation, meta/next_report,
//                       accepted/<job> highest epoch, report/<be64 index> AttemptReport
//   attempts/<job>.aE   one line: the session folder of an attempt, to be swept
//   agent/              the ranks' socket, when the path is short enough
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "proto/base/files.h"
#include "proto/base/status.h"
#include "storage/kv.h"
#include "worker/agent/core/types.h"

namespace swax {

class Outbox {
 public:
  // kFailedPrecondition: another agent works here, or one of another name did; kDataLoss: stored
  // bytes are damaged. A new incarnation is on disk when it returns.
  static Result<std::unique_ptr<Outbox>> open(const std::string& folder, const std::string& node);
  const std::string& folder() const { return folder_; }  // absolute, without links
  const std::string& state_id() const { return state_id_; }
  uint64_t incarnation() const { return incarnation_; }
  std::string attempts_folder() const { return join_path(folder_, "attempts"); }

  Status load(agent::State* state);  // the durable parts
  // One batch; on disk when it returns, unless it only drops. What failed may be tried again.
  Status save(const agent::SaveOutbox& save);

 private:
  Outbox(std::string folder, Fd lock) : folder_(std::move(folder)), lock_(std::move(lock)) {}
  Status start(const std::string& node);

  const std::string folder_;
  const Fd lock_;
  std::unique_ptr<Kv> kv_;
  std::string state_id_;
  uint64_t incarnation_ = 0;
  std::set<uint64_t> stored_;  // indexes of the reports on disk
};

}  // namespace swax
