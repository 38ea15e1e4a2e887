#include "worker/comm/local_collectives.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "proto/base/text.h"
#include "worker/comm/local_group.h"

namespace swax {
namespace {

class LocalCollectives final : public Collectives {
 public:
  // The group is shared because handles may be destroyed in any order. No backend: host memory.
  LocalCollectives(std::shared_ptr<LocalGroup> group, int rank, Backend* backend)
      : group_(std::move(group)), rank_(rank), backend_(backend) {}
  ~LocalCollectives() override { group_->fail("rank " + to_text(rank_) + " left the group"); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  Result<Event> all_gather(Stream& s, Tensor shard, Tensor full) override {
    if (!shard.contiguous() || !full.contiguous() || shard.dtype != full.dtype ||
        full.elements() != shard.elements() * size()) {
      return reject("all_gather: full must hold " + to_text(size()) +
                    " shards of the same dtype, contiguous");
    }
    const size_t bytes = static_cast<size_t>(shard.bytes());
    if (backend_ != nullptr) return exchange(s, LocalCall::kAllGather, shard.data, bytes, 0, full);
    SWAX_TRY(gather(LocalCall::kAllGather, shard.data, bytes, full.data));
    return Event{};
  }

  Result<Event> all_to_all(Stream& s, Tensor send, Tensor recv) override {
    if (!send.contiguous() || !recv.contiguous() || send.dtype != recv.dtype ||
        send.elements() != recv.elements() || send.elements() % size() != 0) {
      return reject("all_to_all: send and recv must hold " + to_text(size()) +
                    " equal pieces of the same dtype, contiguous");
    }
    const size_t bytes = static_cast<size_t>(send.bytes());
    const size_t piece = bytes / static_cast<size_t>(size());
    const size_t begin = static_cast<size_t>(rank_) * piece;
    if (backend_ != nullptr) {
      return exchange(s, LocalCall::kAllToAll, send.data, bytes, begin, recv);
    }
    SWAX_TRY(meet({.call = LocalCall::kAllToAll, .data = bytes_of(send.data), .bytes = bytes}));
    for (int p = 0; p < size() && piece > 0; ++p) {
      std::memcpy(static_cast<std::byte*>(recv.data) + static_cast<size_t>(p) * piece,
                  group_->offer(p).data + begin, piece);
    }
    group_->part();
    return Event{};
  }

  Status all_gather_host(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (all.size() != mine.size() * static_cast<size_t>(size())) {
      return reject("all_gather_host: all must hold " + to_text(size()) + " parts");
    }
    return gather(LocalCall::kAllGatherHost, mine.data(), mine.size(), all.data());
  }

  Status max_host(std::span<int64_t> values) override {
    SWAX_TRY(meet({.call = LocalCall::kMaxHost,
                   .data = bytes_of(values.data()),
                   .bytes = values.size_bytes()}));
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
    SWAX_TRY(meet({}));
    group_->part();
    return ok();
  }

  void abort(std::string_view reason) override {
    group_->fail("rank " + to_text(rank_) + " aborted: " + std::string(reason));
  }

 private:
  static const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }

  // A wrong argument ends the group too: the others wait for a call that never comes.
  Status reject(std::string message) {
    group_->fail("rank " + to_text(rank_) + ": " + message);
    return invalid_argument(std::move(message));
  }

  Status meet(const LocalOffer& offer) {
    const int64_t call = call_++;
    if (!group_->allowed(rank_, call)) {
      group_->fail("fault injected in rank " + to_text(rank_) + " at call " + to_text(call));
    }
    return group_->meet(rank_, offer);
  }

  Status gather(LocalCall call, const void* mine, size_t bytes, void* all) {
    SWAX_TRY(meet({.call = call, .data = bytes_of(mine), .bytes = bytes}));
    for (int p = 0; p < size() && bytes > 0; ++p) {
      std::byte* to = static_cast<std::byte*>(all) + static_cast<size_t>(p) * bytes;
      if (to != group_->offer(p).data) std::memcpy(to, group_->offer(p).data, bytes);
    }
    group_->part();
    return ok();
  }

  // Device memory: `to` gets one piece of each rank's offer, from byte `begin` of it.
  Result<Event> exchange(Stream& s, LocalCall call, const void* mine, size_t bytes, size_t begin,
                         Tensor to) {
    SWAX_TRY(meet({.call = call,
                   .data = bytes_of(mine),
                   .bytes = bytes,
                   .backend = backend_,
                   .ready = backend_->record(s)}));
    Status copied;
    group_->alone([&] {
      for (int p = 0; p < size(); ++p) {
        if (p != rank_) group_->offer(p).backend->wait(s, group_->offer(p).ready);
      }
      copied = copy_pieces(s, begin, to);
      group_->done(rank_) = backend_->record(s);
    });
    group_->part();
    Event all_done;
    group_->alone([&] {
      for (int p = 0; p < size(); ++p) {
        if (p != rank_) group_->offer(p).backend->wait(s, group_->done(p));
      }
      all_done = backend_->record(s);
    });
    group_->part();
    if (!copied.ok()) {
      group_->fail("rank " + to_text(rank_) + ": " + copied.message());
      return copied;
    }
    return all_done;
  }

  Status copy_pieces(Stream& s, size_t begin, const Tensor& to) {
    const int64_t piece = to.bytes() / size();
    for (int p = 0; p < size() && piece > 0; ++p) {
      std::byte* target = static_cast<std::byte*>(to.data) + p * piece;
      auto* source = const_cast<std::byte*>(group_->offer(p).data + begin);
      if (target == source) continue;
      SWAX_TRY(backend_->copy(s, Tensor::of(target, DType::kU8, {piece}),
                              Tensor::of(source, DType::kU8, {piece})));
    }
    return ok();
  }

  std::shared_ptr<LocalGroup> group_;
  int rank_;
  Backend* backend_;
  int64_t call_ = 0;
  std::vector<int64_t> largest_;  // of max_host: nobody may write values while others read them
};

std::vector<std::unique_ptr<Collectives>> make_handles(int ranks,
                                                       std::span<Backend* const> backends,
                                                       LocalFaults faults) {
  SWAX_CHECK(ranks >= 1);
  const auto group = std::make_shared<LocalGroup>(ranks, std::move(faults));
  std::vector<std::unique_ptr<Collectives>> handles;
  for (int r = 0; r < ranks; ++r) {
    Backend* backend = backends.empty() ? nullptr : backends[static_cast<size_t>(r)];
    // The CPU backend has done everything when its call returns: the host copies.
    if (backend != nullptr && backend->kind() == BackendKind::kCpu) backend = nullptr;
    handles.push_back(std::make_unique<LocalCollectives>(group, r, backend));
  }
  return handles;
}

}  // namespace

std::vector<std::unique_ptr<Collectives>> make_local_collectives(int ranks, LocalFaults faults) {
  return make_handles(ranks, {}, std::move(faults));
}

std::vector<std::unique_ptr<Collectives>> make_local_collectives(std::span<Backend* const> backends,
                                                                 LocalFaults faults) {
  for (const Backend* backend : backends) {
    SWAX_CHECK(backend != nullptr && backend->kind() == backends.front()->kind());
  }
  return make_handles(static_cast<int>(backends.size()), backends, std::move(faults));
}

}  // namespace swax
