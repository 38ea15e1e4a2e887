// The coordinator's end: a ROUTER. Peers are known by the routing ids that libzmq makes; each gets
// a handle of ours that is never used again, so that no mail reaches who comes later.
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <unordered_map>

#include "proto/base/clock.h"
#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "proto/wire/channel.h"
#include "proto/wire/zmq_socket.h"

namespace swax {
namespace {

constexpr int64_t kPeerIdleMs = 120000;     // then its handle is forgotten
constexpr int64_t kExpiryMs = 10000;        // between looks for idle peers
constexpr int kOutboxRetryMs = 10;          // libzmq does not say which peer reads again
constexpr size_t kOutboxMessages = 256;     // of one peer
constexpr int64_t kOutboxBytes = 2 * kMiB;  // of one peer
constexpr size_t kRoundBytes = kMiB;  // of one poll; parsed, a message may take 40 times as much
constexpr int kFramesPerMessage = 4;  // a round looks at this many frames per message asked for

// What a worker needs goes before the answers to clients.
bool is_control(const pb::Envelope& envelope) { return !envelope.has_reply(); }

// Frames that libzmq did not take yet.
class Outbox {
 public:
  bool empty() const { return control_.empty() && replies_.empty(); }
  int64_t bytes() const { return bytes_; }

  // False: full. A full outbox gives up replies for control.
  bool push(std::string frame, bool control) {
    const int64_t more = static_cast<int64_t>(frame.size());
    while (control && !fits(more) && !replies_.empty()) {
      bytes_ -= static_cast<int64_t>(replies_.back().size());
      replies_.pop_back();
    }
    if (!fits(more)) return false;
    bytes_ += more;
    (control ? control_ : replies_).push_back(std::move(frame));
    return true;
  }
  const std::string& front() const {
    return control_.empty() ? replies_.front() : control_.front();
  }
  void pop() {
    bytes_ -= static_cast<int64_t>(front().size());
    (control_.empty() ? replies_ : control_).pop_front();
  }

 private:
  bool fits(int64_t more) const {
    return control_.size() + replies_.size() < kOutboxMessages && bytes_ + more <= kOutboxBytes;
  }
  std::deque<std::string> control_, replies_;
  int64_t bytes_ = 0;
};

struct Peer {
  std::string routing_id;
  int64_t heard_ms = 0;
  Outbox outbox;
};

// libzmq's own: a zero byte and a number. A peer that names itself could be taken for another.
bool made_by_libzmq(std::string_view routing_id) {
  return routing_id.size() == 5 && routing_id[0] == '\0';
}

class ZmqServerChannel final : public ServerChannel {
 public:
  ZmqServerChannel(wire::Context context, wire::Socket socket, wire::WakeUp wake,
                   std::string address)
      : context_(std::move(context)),
        socket_(std::move(socket)),
        wake_(std::move(wake)),
        address_(std::move(address)) {}

  std::string address() const override { return address_; }
  void wake() override { wake_.raise(); }
  uint64_t peers() const override { return peers_.size(); }
  std::vector<Received> poll(int timeout_ms, int max) override;
  bool send(uint64_t handle, const pb::Envelope& envelope) override;
  void forget(uint64_t handle) override;
  std::map<std::string, uint64_t> refused() const override;

 private:
  bool take(const std::vector<std::string>& parts, Received* received);
  void refuse(FrameProblem problem) { ++refused_[static_cast<size_t>(problem)]; }
  uint64_t handle_of(const std::string& routing_id);
  bool flush(uint64_t handle, Peer* peer);
  void flush_all();
  void expire();

  // Ends in reverse order: the context waits for its sockets.
  wire::Context context_;
  wire::Socket socket_;
  wire::WakeUp wake_;
  const std::string address_;
  SystemClock clock_;
  std::unordered_map<std::string, uint64_t> handles_;
  std::map<uint64_t, Peer> peers_;
  std::vector<uint64_t> waiting_;  // peers with something in the outbox
  uint64_t next_handle_ = 1;
  int64_t expired_ms_ = 0;
  uint64_t dropped_ = 0;
  uint64_t refused_[static_cast<size_t>(FrameProblem::kState) + 1] = {};
};

std::vector<Received> ZmqServerChannel::poll(int timeout_ms, int max) {
  flush_all();
  expire();
  if (!waiting_.empty()) timeout_ms = std::min(timeout_ms, kOutboxRetryMs);
  wire::wait_readable(socket_, wake_, timeout_ms);
  std::vector<Received> taken;
  std::vector<std::string> parts;
  // libzmq takes one message from each connection in turn, so a flood from one peer leaves the
  // others their share of a round; refused frames use up the round as well.
  size_t bytes = 0;
  const int look_max = kFramesPerMessage * max;
  for (int looked = 0; looked < look_max && bytes < kRoundBytes; ++looked) {
    if (static_cast<int>(taken.size()) == max) break;
    const wire::Receive result = wire::receive(socket_, 2, &parts);
    if (result == wire::Receive::kNothing) break;
    Received received;
    if (result == wire::Receive::kMalformed) {
      refuse(FrameProblem::kLength);
    } else if (take(parts, &received)) {
      taken.push_back(std::move(received));
      bytes += parts[1].size();
    }
  }
  // Workers before clients; the order of one peer's messages stays.
  std::stable_partition(taken.begin(), taken.end(),
                        [](const Received& r) { return !r.envelope.has_request(); });
  return taken;
}

bool ZmqServerChannel::take(const std::vector<std::string>& parts, Received* received) {
  if (!made_by_libzmq(parts[0])) {
    refuse(FrameProblem::kState);
    return false;
  }
  const FrameProblem problem = decode_envelope(parts[1], &received->envelope);
  if (problem != FrameProblem::kNone) {
    refuse(problem);
    return false;
  }
  if (received->envelope.has_request() && !received->envelope.request_id().empty())
    received->request_bytes = received->envelope.request().SerializeAsString();
  received->peer = handle_of(parts[0]);
  return true;
}

// Peers that only ever send refused frames get no handle and cost nothing here.
uint64_t ZmqServerChannel::handle_of(const std::string& routing_id) {
  const auto [it, added] = handles_.try_emplace(routing_id, next_handle_);
  if (added) peers_[next_handle_++].routing_id = routing_id;
  peers_[it->second].heard_ms = clock_.monotonic_ms();
  return it->second;
}

bool ZmqServerChannel::send(uint64_t handle, const pb::Envelope& envelope) {
  const auto it = peers_.find(handle);
  if (it == peers_.end()) return false;
  Result<std::string> frame = encode_frame(envelope);
  if (!frame.ok()) {
    log_error("wire", "message dropped", {{"reason", frame.status().message()}});
    return false;
  }
  Peer& peer = it->second;
  if (peer.outbox.empty()) {
    const wire::Sent sent = wire::send_to(socket_, peer.routing_id, *frame);
    if (sent == wire::Sent::kYes) return true;
    if (sent == wire::Sent::kGone) {
      forget(handle);
      return false;
    }
    waiting_.push_back(handle);
  }
  if (peer.outbox.push(std::move(*frame), is_control(envelope))) return true;
  ++dropped_;
  log_warn("wire", "peer does not read; message dropped",
           {{"peer", handle}, {"outbox_bytes", peer.outbox.bytes()}, {"dropped", dropped_}});
  return false;
}

// False: the peer is gone and was forgotten.
bool ZmqServerChannel::flush(uint64_t handle, Peer* peer) {
  while (!peer->outbox.empty()) {
    const wire::Sent sent = wire::send_to(socket_, peer->routing_id, peer->outbox.front());
    if (sent == wire::Sent::kFull) return true;
    if (sent == wire::Sent::kGone) {
      forget(handle);
      return false;
    }
    peer->outbox.pop();
  }
  return true;
}

void ZmqServerChannel::flush_all() {
  std::vector<uint64_t> still;
  for (const uint64_t handle : waiting_) {
    const auto it = peers_.find(handle);
    if (it == peers_.end()) continue;
    if (flush(handle, &it->second) && !it->second.outbox.empty()) still.push_back(handle);
  }
  waiting_ = std::move(still);
}

void ZmqServerChannel::forget(uint64_t handle) {
  const auto it = peers_.find(handle);
  if (it == peers_.end()) return;
  handles_.erase(it->second.routing_id);
  peers_.erase(it);
}

void ZmqServerChannel::expire() {
  const int64_t now = clock_.monotonic_ms();
  if (now - expired_ms_ < kExpiryMs) return;
  expired_ms_ = now;
  std::vector<uint64_t> idle;
  for (const auto& [handle, peer] : peers_) {
    if (now - peer.heard_ms > kPeerIdleMs) idle.push_back(handle);
  }
  for (const uint64_t handle : idle) forget(handle);
}

std::map<std::string, uint64_t> ZmqServerChannel::refused() const {
  std::map<std::string, uint64_t> counts;
  for (size_t i = 0; i < std::size(refused_); ++i) {
    if (refused_[i] > 0) counts[frame_problem_name(static_cast<FrameProblem>(i))] = refused_[i];
  }
  if (dropped_ > 0) counts["dropped"] = dropped_;
  return counts;
}

Status bind_socket(const wire::Socket& router, const wire::Address& address) {
  SWAX_TRY(wire::set_option(router, ZMQ_ROUTER_MANDATORY, 1));
  SWAX_TRY(wire::set_option(router, ZMQ_ROUTER_HANDOVER, 0));
  SWAX_TRY(wire::set_option(router, ZMQ_BACKLOG, 4096));
  if (zmq_bind(router.get(), address.text.c_str()) == 0) return ok();
  const int error = zmq_errno();
  const std::string text = "listen on " + address.text + ": " + zmq_strerror(error);
  switch (error) {
    case EADDRINUSE:
      return failed_precondition(text);
    case EADDRNOTAVAIL:
    case EACCES:
      return invalid_argument(text);
    default:
      return internal_error(text);
  }
}

}  // namespace

Result<std::unique_ptr<ServerChannel>> ServerChannel::bind(const std::string& text, bool insecure) {
  SWAX_ASSIGN(const wire::Address address, wire::parse_address(text));
  if (!address.loopback && !insecure) {
    return invalid_argument("listen on " + text +
                            ": only loopback without keys; --insecure opens it to the network");
  }
  SWAX_ASSIGN(wire::WakeUp wake, wire::WakeUp::make());
  SWAX_ASSIGN(wire::Context context, wire::make_context());
  SWAX_ASSIGN(wire::Socket router, wire::make_socket(context, wire::SocketKind::kRouter, address));
  SWAX_TRY(bind_socket(router, address));
  char endpoint[256];
  size_t bytes = sizeof endpoint;
  if (zmq_getsockopt(router.get(), ZMQ_LAST_ENDPOINT, endpoint, &bytes) != 0)
    return internal_error("listen on " + text + ": " + wire::zmq_error_text());
  return std::unique_ptr<ServerChannel>(std::make_unique<ZmqServerChannel>(
      std::move(context), std::move(router), std::move(wake), std::string(endpoint)));
}

}  // namespace swax
