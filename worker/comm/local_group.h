// What the ranks of one LocalCollectives group share. A collective is a meeting: all ranks put down
// their offers and wait (meet); when the last one is there, all read each other's memory, or
// enqueue the reading; nobody goes on before everyone has come so far (part). A failure is decided
// only while ranks wait in meet(): then no memory is being read, and each may go and free its own.
// Internal to worker/comm. Threads: any; rank r is used by one thread at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "worker/comm/local_collectives.h"

namespace swax {

enum class LocalCall { kAllGather, kAllToAll, kAllGatherHost, kMaxHost, kBarrier };

// What a rank brings to a meeting: which call, and where the others read from. With a device also
// its backend and the point of its stream behind which `data` is written.
struct LocalOffer {
  LocalCall call = LocalCall::kBarrier;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  Backend* backend = nullptr;
  Event ready = {};
};

class LocalGroup {
 public:
  LocalGroup(int ranks, LocalFaults faults)
      : faults_(std::move(faults)),
        offers_(static_cast<size_t>(ranks)),
        done_(static_cast<size_t>(ranks)) {}

  int size() const { return static_cast<int>(offers_.size()); }
  // Between meet and the last part of a meeting.
  const LocalOffer& offer(int rank) const { return offers_[static_cast<size_t>(rank)]; }
  bool allowed(int rank, int64_t call) const {
    return !faults_.before || faults_.before(rank, call);
  }
  void fail(std::string reason);

  // kUnavailable once the group has failed, or when the ranks' calls or sizes differ.
  Status meet(int rank, const LocalOffer& offer);
  // Waits until every rank of the meeting is here; may come more than once in a meeting.
  void part();

  // Between meet and part every rank is in this call, so a rank may use another's backend, one at a
  // time: `work` runs alone.
  template <typename Work>
  void alone(Work&& work) {
    const std::lock_guard<std::mutex> lock(device_);
    work();
  }
  // Written by its rank before a part, read by all behind it.
  Event& done(int rank) { return done_[static_cast<size_t>(rank)]; }

 private:
  void fail_locked(std::string reason);

  LocalFaults faults_;
  std::mutex mutex_;
  std::mutex device_;
  std::condition_variable changed_;
  std::vector<LocalOffer> offers_;  // written under the mutex, read between meet and part
  std::vector<Event> done_;
  std::string failure_;  // not empty: the group is dead
  int waiting_ = 0;
  int reading_ = 0;
  uint64_t meeting_ = 0;
  uint64_t parting_ = 0;
};

}  // namespace swax
