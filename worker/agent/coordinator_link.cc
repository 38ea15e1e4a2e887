#include "worker/agent/coordinator_link.h"

#include <chrono>
#include <utility>

#include "proto/base/log.h"

namespace swax {
namespace {

constexpr size_t kOutgoingMax = 4096;
constexpr int kPollMs = 200;
constexpr int kMessagesMax = 64;

}  // namespace

Result<std::unique_ptr<CoordinatorLink>> CoordinatorLink::start(const std::string& address,
                                                                EventQueue& events,
                                                                const LinkTiming& timing) {
  std::unique_ptr<CoordinatorLink> link(new CoordinatorLink(events, timing));
  link->alive();
  std::promise<Status> opened;
  std::future<Status> answer = opened.get_future();
  link->thread_ = std::thread(&CoordinatorLink::run, link.get(), address, std::move(opened));
  SWAX_TRY(answer.get());
  return link;
}

CoordinatorLink::~CoordinatorLink() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    if (channel_ != nullptr) channel_->wake();
  }
  thread_.join();
}

void CoordinatorLink::run(const std::string& address, std::promise<Status> opened) {
  Result<std::unique_ptr<ClientChannel>> channel = ClientChannel::connect(address);
  if (!channel.ok()) return opened.set_value(channel.status());
  {
    const std::scoped_lock lock(mutex_);
    channel_ = channel->get();
  }
  opened.set_value(ok());
  work(**channel);
  const std::scoped_lock lock(mutex_);
  channel_ = nullptr;
}

void CoordinatorLink::work(ClientChannel& channel) {
  for (;;) {
    std::deque<pb::Envelope> outgoing;
    bool renew = false;
    {
      const std::scoped_lock lock(mutex_);
      if (stop_) return;
      outgoing.swap(outgoing_);
      renew = std::exchange(reconnect_, false);
      trouble_ = channel.trouble();
    }
    if (renew) {
      channel.reconnect();
      beat_.reset();
    }
    for (const pb::Envelope& envelope : outgoing) {
      if (!channel.send(envelope)) log_debug("agent", "message dropped", {});
      note(envelope);
    }
    if (!outgoing.empty()) emptied_.notify_all();
    if (copy_is_due()) {
      channel.send(*beat_);
      beat_ms_ = clock_.monotonic_ms();
    }
    for (pb::Envelope& envelope : channel.poll(kPollMs, kMessagesMax))
      events_.push(agent::FromCoordinator{.envelope = std::move(envelope)});
  }
}

void CoordinatorLink::note(const pb::Envelope& sent) {
  if (sent.has_goodbye()) beat_.reset();
  if (!sent.has_heartbeat()) return;
  beat_ = sent;
  beat_ms_ = clock_.monotonic_ms();
}

bool CoordinatorLink::copy_is_due() {
  const int64_t now_ms = clock_.monotonic_ms(), late_ms = now_ms - alive_ms_;
  return beat_ && late_ms >= timing_.late_ms && late_ms <= timing_.limit_ms &&
         now_ms - beat_ms_ >= timing_.copy_ms;
}

void CoordinatorLink::alive() { alive_ms_ = clock_.monotonic_ms(); }

void CoordinatorLink::send(pb::Envelope envelope) {
  const std::scoped_lock lock(mutex_);
  if (outgoing_.size() >= kOutgoingMax) return;
  outgoing_.push_back(std::move(envelope));
  if (channel_ != nullptr) channel_->wake();
}

// Messages to the old socket are of no use to the new one.
void CoordinatorLink::reconnect() {
  const std::scoped_lock lock(mutex_);
  outgoing_.clear();
  reconnect_ = true;
  if (channel_ != nullptr) channel_->wake();
}

void CoordinatorLink::drain(int64_t limit_ms) {
  std::unique_lock lock(mutex_);
  emptied_.wait_for(lock, std::chrono::milliseconds(limit_ms), [&] { return outgoing_.empty(); });
}

std::string CoordinatorLink::trouble() const {
  const std::scoped_lock lock(mutex_);
  return trouble_;
}

}  // namespace swax
