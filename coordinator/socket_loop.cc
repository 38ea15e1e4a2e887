#include "coordinator/socket_loop.h"

#include <algorithm>

#include "proto/base/hash.h"
#include "proto/base/log.h"

namespace swax::coord {
namespace {

constexpr int kPollMs = 200;
constexpr int kMessagesPerTurn = 256;
constexpr int64_t kCoreLateMs = 300;  // then heartbeats are answered here
constexpr int64_t kPublishMs = 100;   // counts for `status`
constexpr size_t kRequestIdBytesMax = 64;
constexpr size_t kBeatsMax = 100000;  // workers whose last answer is kept

bool changes_state(const pb::Request& request) {
  return request.has_submit() || request.has_cancel() || request.has_resume();
}

// Bodies that a coordinator may get at all.
bool is_for_coordinator(const pb::Envelope& envelope) {
  switch (envelope.body_case()) {
    case pb::Envelope::kHello:
    case pb::Envelope::kHeartbeat:
    case pb::Envelope::kGoodbye:
    case pb::Envelope::kAttemptReports:
    case pb::Envelope::kLaunchRemote:
    case pb::Envelope::kRemoteExited:
      return !envelope.node().empty();
    case pb::Envelope::kRequest:
      return envelope.request_id().size() <= kRequestIdBytesMax;
    default:
      return false;
  }
}

}  // namespace

SocketLoop::SocketLoop(SocketOptions options, Inbox& inbox, Outgoing& outgoing,
                       std::function<int64_t()> busy_ms)
    : options_(std::move(options)),
      inbox_(inbox),
      outgoing_(outgoing),
      busy_ms_(std::move(busy_ms)) {}

SocketLoop::~SocketLoop() {
  request_stop();
  if (thread_.joinable()) thread_.join();
}

Result<std::string> SocketLoop::start() {
  std::promise<Result<std::string>> bound;
  std::future<Result<std::string>> result = bound.get_future();
  thread_ = std::thread([this, promise = std::move(bound)]() mutable { run(&promise); });
  return result.get();
}

void SocketLoop::request_stop() {
  stop_ = true;
  wake();
}

void SocketLoop::wake() {
  const std::scoped_lock lock(channel_mutex_);
  if (channel_) channel_->wake();
}

SocketLoop::Counts SocketLoop::counts() const {
  const std::scoped_lock lock(counts_mutex_);
  return counts_;
}

void SocketLoop::run(std::promise<Result<std::string>>* bound) {
  Result<std::unique_ptr<ServerChannel>> channel =
      ServerChannel::bind(options_.listen, options_.insecure);
  if (!channel.ok()) return bound->set_value(channel.status());
  std::string address = (*channel)->address();
  {
    const std::scoped_lock lock(channel_mutex_);
    channel_ = std::move(channel).value();
  }
  bound->set_value(std::move(address));
  while (!stop_) turn();
  send_all();  // answers to what is stored already
  channel_->poll(0, 1);
  const std::scoped_lock lock(channel_mutex_);
  channel_.reset();
}

void SocketLoop::turn() {
  for (Received& received : channel_->poll(kPollMs, kMessagesPerTurn)) take(std::move(received));
  send_all();
  publish();
}

bool SocketLoop::acceptable(const Received& received) {
  const std::string& cluster = received.envelope.cluster_id();
  if (!cluster.empty() && cluster != options_.cluster_id) {
    ++refused_[frame_problem_name(FrameProblem::kCluster)];
    return false;
  }
  if (is_for_coordinator(received.envelope)) return true;
  ++refused_[frame_problem_name(FrameProblem::kState)];
  return false;
}

void SocketLoop::take(Received received) {
  if (!acceptable(received)) return;
  const pb::Envelope& envelope = received.envelope;
  if (envelope.has_heartbeat() && busy_ms_() > kCoreLateMs) answer_beat(received.peer);
  Message message;
  message.peer = received.peer;
  if (envelope.has_request() && changes_state(envelope.request()))
    message.body_hash = xxh3_128(received.request_bytes).hex();
  message.envelope = std::move(received.envelope);
  if (!inbox_.push(std::move(message))) ++refused_["queue_full"];
}

void SocketLoop::answer_beat(uint64_t peer) {
  const auto it = last_beats_.find(peer);
  if (it != last_beats_.end()) channel_->send(peer, it->second);
}

void SocketLoop::send_all() {
  for (Outgoing::Item& item : outgoing_.take()) {
    if (const auto* forget = std::get_if<ForgetPeer>(&item)) {
      last_beats_.erase(forget->peer);
      channel_->forget(forget->peer);
      continue;
    }
    const Send& send = std::get<Send>(item);
    const bool sent = channel_->send(send.peer, send.envelope);
    if (send.envelope.has_heartbeat_reply() && sent && last_beats_.size() < kBeatsMax) {
      last_beats_[send.peer] = send.envelope;
    } else if (!sent || send.envelope.has_start_attempt() || send.envelope.has_stop_attempt() ||
               send.envelope.has_welcome()) {
      // What was wanted before this command must not be said after it.
      last_beats_.erase(send.peer);
    }
  }
}

void SocketLoop::publish() {
  const int64_t now = clock_.monotonic_ms();
  if (now - published_ms_ < kPublishMs) return;
  published_ms_ = now;
  Counts counts{.refused = channel_->refused(), .peers = channel_->peers()};
  for (const auto& [reason, count] : refused_) counts.refused[reason] += count;
  const std::scoped_lock lock(counts_mutex_);
  counts_ = std::move(counts);
}

}  // namespace swax::coord
