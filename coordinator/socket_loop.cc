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
constexpr size_t kWorkersMax = 100000;  // whose beats are answered here

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

// Acknowledges nothing and ends nothing: only that we are there.
void SocketLoop::answer_beat(uint64_t peer) {
  const auto it = workers_.find(peer);
  if (it == workers_.end()) return;
  pb::Envelope word = it->second;
  word.mutable_reports_acknowledged();
  channel_->send(peer, word);
}

void SocketLoop::note_sent(const Send& send, bool sent) {
  const pb::Envelope& e = send.envelope;
  if (!sent) workers_.erase(send.peer);
  const bool stranger = e.has_who_are_you() || (e.has_welcome() && !e.welcome().accepted());
  if (!sent || stranger || e.node().empty()) return;
  if (workers_.size() >= kWorkersMax && !workers_.contains(send.peer)) return;
  pb::Envelope& address = workers_[send.peer];
  if (address.node() == e.node() && address.incarnation() == e.incarnation()) return;
  address.set_cluster_id(e.cluster_id());
  address.set_coordinator_epoch(e.coordinator_epoch());
  address.set_node(e.node());
  address.set_incarnation(e.incarnation());
}

void SocketLoop::send_all() {
  for (Outgoing::Item& item : outgoing_.take()) {
    if (const auto* forget = std::get_if<ForgetPeer>(&item)) {
      workers_.erase(forget->peer);
      channel_->forget(forget->peer);
      continue;
    }
    const Send& send = std::get<Send>(item);
    note_sent(send, channel_->send(send.peer, send.envelope));
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
