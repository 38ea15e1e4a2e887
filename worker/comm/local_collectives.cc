#include "worker/comm/local_collectives.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "proto/base/text.h"

namespace swax {
namespace {

enum class Call { kAllGather, kAllToAll, kAllGatherHost, kMaxHost, kBarrier };

const char* call_name(Call c) {
  switch (c) {
    case Call::kAllGather:
      return "all_gather";
    case Call::kAllToAll:
      return "all_to_all";
    case Call::kAllGatherHost:
      return "all_gather_host";
    case Call::kMaxHost:
      return "max_host";
    case Call::kBarrier:
      return "barrier";
  }
  return "unknown";
}

// What a rank brings to a meeting: which call, and where the others read from.
struct Offer {
  Call call = Call::kBarrier;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  bool operator==(const Offer& o) const { return call == o.call && bytes == o.bytes; }
};

// The shared part. A collective is a meeting: all ranks put down their offers and wait (meet); when
// the last one is there, all read each other's memory at the same time; nobody goes on before
// everyone has read (part). A failure is decided only while ranks wait in meet(): then no memory is
// being read, and each may go and free its own.
class Group {
 public:
  Group(int ranks, LocalFaults faults)
      : faults_(std::move(faults)), offers_(static_cast<size_t>(ranks)) {}

  int size() const { return static_cast<int>(offers_.size()); }
  const Offer& offer(int rank) const { return offers_[static_cast<size_t>(rank)]; }
  bool allowed(int rank, int64_t call) const {
    return !faults_.before || faults_.before(rank, call);
  }

  void fail(std::string reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fail_locked(std::move(reason));
  }

  Status meet(int rank, const Offer& offer) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!failure_.empty()) return unavailable(failure_);
    offers_[static_cast<size_t>(rank)] = offer;
    if (++waiting_ < size()) {
      const uint64_t meeting = meeting_;
      changed_.wait(lock, [&] { return meeting_ != meeting || !failure_.empty(); });
      return meeting_ != meeting ? ok() : unavailable(failure_);
    }
    for (const Offer& other : offers_) {
      if (other == offer) continue;
      fail_locked(std::string("ranks disagree: ") + call_name(offer.call) + " of " +
                  to_text(offer.bytes) + " bytes and " + call_name(other.call) + " of " +
                  to_text(other.bytes) + " bytes");
      return unavailable(failure_);
    }
    waiting_ = 0;
    reading_ = size();
    ++meeting_;
    changed_.notify_all();
    return ok();
  }

  void part() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--reading_ == 0) {
      ++parting_;
      changed_.notify_all();
      return;
    }
    // No failure ends this wait: every rank of the meeting is awake and only copies memory.
    const uint64_t parting = parting_;
    changed_.wait(lock, [&] { return parting_ != parting; });
  }

 private:
  void fail_locked(std::string reason) {
    if (failure_.empty()) failure_ = std::move(reason);
    changed_.notify_all();
  }

  LocalFaults faults_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Offer> offers_;  // written under the mutex, read between meet and part
  std::string failure_;        // not empty: the group is dead
  int waiting_ = 0;
  int reading_ = 0;
  uint64_t meeting_ = 0;
  uint64_t parting_ = 0;
};

class LocalCollectives final : public Collectives {
 public:
  // The group is shared because handles may be destroyed in any order.
  LocalCollectives(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~LocalCollectives() override { group_->fail("rank " + to_text(rank_) + " left the group"); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  Result<Event> all_gather(Stream&, Tensor shard, Tensor full) override {
    if (!shard.contiguous() || !full.contiguous() || shard.dtype != full.dtype ||
        full.elements() != shard.elements() * size()) {
      return reject("all_gather: full must hold " + to_text(size()) +
                    " shards of the same dtype, contiguous");
    }
    SWAX_TRY(gather(Call::kAllGather, shard.data, static_cast<size_t>(shard.bytes()), full.data));
    return Event{};
  }

  Result<Event> all_to_all(Stream&, Tensor send, Tensor recv) override {
    if (!send.contiguous() || !recv.contiguous() || send.dtype != recv.dtype ||
        send.elements() != recv.elements() || send.elements() % size() != 0) {
      return reject("all_to_all: send and recv must hold " + to_text(size()) +
                    " equal pieces of the same dtype, contiguous");
    }
    const size_t bytes = static_cast<size_t>(send.bytes());
    SWAX_TRY(meet({Call::kAllToAll, static_cast<const std::byte*>(send.data), bytes}));
    const size_t piece = bytes / static_cast<size_t>(size());
    for (int p = 0; p < size() && piece > 0; ++p) {
      std::memcpy(static_cast<std::byte*>(recv.data) + static_cast<size_t>(p) * piece,
                  group_->offer(p).data + static_cast<size_t>(rank_) * piece, piece);
    }
    group_->part();
    return Event{};
  }

  Status all_gather_host(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (all.size() != mine.size() * static_cast<size_t>(size())) {
      return reject("all_gather_host: all must hold " + to_text(size()) + " parts");
    }
    return gather(Call::kAllGatherHost, mine.data(), mine.size(), all.data());
  }

  Status max_host(std::span<int64_t> values) override {
    SWAX_TRY(meet(
        {Call::kMaxHost, reinterpret_cast<const std::byte*>(values.data()), values.size_bytes()}));
    largest_.assign(values.begin(), values.end());
    for (int p = 0; p < size(); ++p) {
      const auto* other = reinterpret_cast<const int64_t*>(group_->offer(p).data);
      for (size_t i = 0; i < largest_.size(); ++i) largest_[i] = std::max(largest_[i], other[i]);
    }
    group_->part();
    std::copy(largest_.begin(), largest_.end(), values.begin());
    return ok();
  }

  Status barrier() override {
    SWAX_TRY(meet({Call::kBarrier, nullptr, 0}));
    group_->part();
    return ok();
  }

  void abort(std::string_view reason) override {
    group_->fail("rank " + to_text(rank_) + " aborted: " + std::string(reason));
  }

 private:
  // A wrong argument ends the group too: the others wait for a call that never comes.
  Status reject(std::string message) {
    group_->fail("rank " + to_text(rank_) + ": " + message);
    return invalid_argument(std::move(message));
  }

  Status meet(const Offer& offer) {
    const int64_t call = call_++;
    if (!group_->allowed(rank_, call)) {
      group_->fail("fault injected in rank " + to_text(rank_) + " at call " + to_text(call));
    }
    return group_->meet(rank_, offer);
  }

  Status gather(Call call, const void* mine, size_t bytes, void* all) {
    SWAX_TRY(meet({call, static_cast<const std::byte*>(mine), bytes}));
    for (int p = 0; p < size() && bytes > 0; ++p) {
      std::byte* to = static_cast<std::byte*>(all) + static_cast<size_t>(p) * bytes;
      if (to != group_->offer(p).data) std::memcpy(to, group_->offer(p).data, bytes);
    }
    group_->part();
    return ok();
  }

  std::shared_ptr<Group> group_;
  int rank_;
  int64_t call_ = 0;
  std::vector<int64_t> largest_;  // of max_host: nobody may write values while others read them
};

}  // namespace

std::vector<std::unique_ptr<Collectives>> make_local_collectives(int ranks, LocalFaults faults) {
  SWAX_CHECK(ranks >= 1);
  const auto group = std::make_shared<Group>(ranks, std::move(faults));
  std::vector<std::unique_ptr<Collectives>> handles;
  for (int r = 0; r < ranks; ++r) {
    handles.push_back(std::make_unique<LocalCollectives>(group, r));
  }
  return handles;
}

}  // namespace swax
