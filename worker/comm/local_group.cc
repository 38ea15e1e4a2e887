#include "worker/comm/local_group.h"

#include <utility>

#include "proto/base/text.h"

namespace swax {
namespace {

const char* call_name(LocalCall c) {
  switch (c) {
    case LocalCall::kAllGather:
      return "all_gather";
    case LocalCall::kAllToAll:
      return "all_to_all";
    case LocalCall::kAllGatherHost:
      return "all_gather_host";
    case LocalCall::kMaxHost:
      return "max_host";
    case LocalCall::kBarrier:
      return "barrier";
  }
  return "unknown";
}

std::string offer_text(const LocalOffer& o) {
  return std::string(call_name(o.call)) + " of " + to_text(o.bytes) + " bytes";
}

}  // namespace

void LocalGroup::fail(std::string reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fail_locked(std::move(reason));
}

void LocalGroup::fail_locked(std::string reason) {
  if (failure_.empty()) failure_ = std::move(reason);
  changed_.notify_all();
}

Status LocalGroup::meet(int rank, const LocalOffer& offer) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.empty()) return unavailable(failure_);
  offers_[static_cast<size_t>(rank)] = offer;
  if (++waiting_ < size()) {
    const uint64_t meeting = meeting_;
    changed_.wait(lock, [&] { return meeting_ != meeting || !failure_.empty(); });
    return meeting_ != meeting ? ok() : unavailable(failure_);
  }
  for (const LocalOffer& other : offers_) {
    if (other.call == offer.call && other.bytes == offer.bytes) continue;
    fail_locked("ranks disagree: " + offer_text(offer) + " and " + offer_text(other));
    return unavailable(failure_);
  }
  waiting_ = 0;
  reading_ = size();
  ++meeting_;
  changed_.notify_all();
  return ok();
}

void LocalGroup::part() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (--reading_ == 0) {
    reading_ = size();
    ++parting_;
    changed_.notify_all();
    return;
  }
  // No failure ends this wait: every rank of the meeting is awake, copies memory or enqueues that.
  const uint64_t parting = parting_;
  changed_.wait(lock, [&] { return parting_ != parting; });
}

}  // namespace swax
