// Where each rank of a group is: device calls it has asked for, calls that its stream has reached,
// calls that are complete, host calls it has entered. Ranks of one host write their own line in
// memory that all of them map, so that a rank whose call hangs can say who is late, and hears that
// another has given up, without a word over the network that may be what is broken. Ranks of other
// hosts are unknown here. Threads: any; each count has one writer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "worker/comm/collectives.h"

namespace swax {

class ProgressBoard {
 public:
  struct Progress {
    int64_t asked = 0;
    int64_t reached = 0;
    int64_t completed = 0;
  };

  // Every rank calls it, with a key that no other group has had. The memory is a file of `folder`
  // that has no name any more when this returns. kFailedPrecondition: it cannot be made.
  static Result<std::unique_ptr<ProgressBoard>> create(Collectives& host, std::string_view key,
                                                       const std::string& folder = "/dev/shm");
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  void asked(int64_t calls) { mine().asked.store(calls, std::memory_order_release); }
  void reached(int64_t calls) { mine().reached.store(calls, std::memory_order_release); }
  void completed(int64_t calls) { mine().completed.store(calls, std::memory_order_release); }
  void host_asked(int64_t calls) { mine().host_asked.store(calls, std::memory_order_release); }
  // Once; the text is cut to what a line holds.
  void give_up(std::string_view reason);

  // Nothing when the rank is on another host.
  bool known(int rank) const { return line(rank).present.load(std::memory_order_acquire) != 0; }
  // All ranks of the group are on this host: every rank has the same answer.
  bool all_known() const;
  Progress progress(int rank) const;
  // "rank 2: reason" of the first other rank that has given up; empty: none.
  std::string given_up() const;
  // Which ranks keep call number `call` (from 1) waiting: "late: rank 1 (has asked for 3 of 4
  // calls)", or that all ranks of this host are in it.
  std::string late(int64_t call) const;
  // The same of host calls, which have numbers of their own.
  std::string late_on_host(int64_t call) const;

 private:
  static constexpr int64_t kReasonBytes = 192;
  struct alignas(256) Line {
    std::atomic<int64_t> present;
    std::atomic<int64_t> asked;
    std::atomic<int64_t> reached;
    std::atomic<int64_t> completed;
    std::atomic<int64_t> host_asked;
    std::atomic<int64_t> reason_bytes;  // -1 while it is written
    char reason[kReasonBytes];
  };
  static_assert(std::atomic<int64_t>::is_always_lock_free);

  ProgressBoard(int rank, int size, void* memory)
      : rank_(rank), size_(size), lines_(static_cast<Line*>(memory)) {}
  Line& mine() { return lines_[rank_]; }
  const Line& line(int rank) const { return lines_[rank]; }
  // `behind` says what a rank has done of what it is waited for; empty: it is not late.
  std::string name_late(const std::function<std::string(int rank)>& behind) const;

  int rank_;
  int size_;
  Line* lines_;
};

}  // namespace swax
