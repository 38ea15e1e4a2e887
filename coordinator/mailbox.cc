#include "coordinator/mailbox.h"

#include <chrono>

#include "proto/base/ids.h"

namespace swax::coord {
namespace {

// A worker sends a beat a second and its reports in few messages; a client waits for its answers.
constexpr size_t kWorkerMessages = 256, kClientMessages = 32;
constexpr size_t kWorkerBytes = 8 * kMiB, kClientBytes = 2 * kMiB;
constexpr size_t kOutgoingBytes = 8 * kMiB;

}  // namespace

bool FairQueue::push(Message message) {
  const size_t bytes = message.envelope.ByteSizeLong();
  std::deque<Item>& queue = peers_[message.peer];
  if (queue.size() >= per_peer_max_ || bytes_ + bytes > bytes_max_) {
    if (queue.empty()) peers_.erase(message.peer);
    return false;
  }
  if (queue.empty()) turns_.push_back(message.peer);
  bytes_ += bytes;
  queue.push_back({std::move(message), bytes});
  return true;
}

Message FairQueue::pop() {
  const uint64_t peer = turns_.front();
  turns_.pop_front();
  const auto it = peers_.find(peer);
  Item item = std::move(it->second.front());
  it->second.pop_front();
  bytes_ -= item.bytes;
  if (it->second.empty()) {
    peers_.erase(it);
  } else {
    turns_.push_back(peer);
  }
  return std::move(item.message);
}

Inbox::Inbox() : workers_(kWorkerMessages, kWorkerBytes), clients_(kClientMessages, kClientBytes) {}

bool Inbox::push(Message message) {
  const std::scoped_lock lock(mutex_);
  FairQueue& queue = message.envelope.has_request() ? clients_ : workers_;
  const bool taken = queue.push(std::move(message));
  changed_.notify_all();
  return taken;
}

void Inbox::push_done(EventBody event) {
  const std::scoped_lock lock(mutex_);
  done_.push_back(std::move(event));
  changed_.notify_all();
}

void Inbox::stop() {
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

bool Inbox::stopped() const {
  const std::scoped_lock lock(mutex_);
  return stopped_;
}

std::vector<EventBody> Inbox::take(int64_t timeout_ms, size_t messages_max, size_t requests_max) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    return stopped_ || !done_.empty() || !workers_.empty() || !clients_.empty();
  });
  std::vector<EventBody> events;
  for (; !done_.empty(); done_.pop_front()) events.push_back(std::move(done_.front()));
  for (size_t n = 0; n < messages_max && !workers_.empty(); ++n)
    events.emplace_back(workers_.pop());
  for (size_t n = 0; n < requests_max && !clients_.empty(); ++n)
    events.emplace_back(clients_.pop());
  return events;
}

std::vector<Message> Inbox::take_requests(int64_t timeout_ms, size_t max) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                    [&] { return stopped_ || !clients_.empty(); });
  std::vector<Message> requests;
  while (requests.size() < max && !clients_.empty()) requests.push_back(clients_.pop());
  return requests;
}

void Outgoing::push(std::vector<Item> items) {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [&] { return stopped_ || bytes_ < kOutgoingBytes; });
  for (Item& item : items) {
    if (const auto* send = std::get_if<Send>(&item)) bytes_ += send->envelope.ByteSizeLong();
    items_.push_back(std::move(item));
  }
}

std::vector<Outgoing::Item> Outgoing::take() {
  const std::scoped_lock lock(mutex_);
  bytes_ = 0;
  drained_.notify_all();
  return std::exchange(items_, {});
}

void Outgoing::stop() {
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  drained_.notify_all();
}

}  // namespace swax::coord
