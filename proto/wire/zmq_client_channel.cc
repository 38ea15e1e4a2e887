// The end of workers and clients: a DEALER and the monitor of its connection.
#include <zmq.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "proto/base/clock.h"
#include "proto/base/hash.h"
#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "proto/wire/channel.h"
#include "proto/wire/zmq_socket.h"

namespace swax {
namespace {

// Before the connection stands nothing goes to libzmq (IMMEDIATE); this much waits here. More
// would only be old heartbeats.
constexpr size_t kOutboxMessages = 64;
constexpr int64_t kOutboxBytes = 4 * kMiB;
constexpr int kOutboxRetryMs = 10;
constexpr int kReconnectMsMax = 30000;
constexpr const char* kNotConnected = "not connected yet";
// An ended monitor's address stays taken for a moment: each socket has its own.
std::string monitor_address(uint64_t number) { return "inproc://monitor-" + to_text(number); }

// Jitter against a storm of reconnecting workers; any spread will do.
int reconnect_ms() {
  SystemClock clock;
  return 200 + static_cast<int>(mix_bits(static_cast<uint64_t>(clock.monotonic_ns())) % 800);
}

class ZmqClientChannel final : public ClientChannel {
 public:
  ZmqClientChannel(wire::Address address, wire::Context context, wire::WakeUp wake)
      : address_(std::move(address)), context_(std::move(context)), wake_(std::move(wake)) {}
  ~ZmqClientChannel() override { end_socket(); }

  Status open();
  std::vector<pb::Envelope> poll(int timeout_ms, int max) override;
  bool send(const pb::Envelope& envelope) override;
  void reconnect() override;
  void wake() override { wake_.raise(); }
  std::string trouble() const override { return trouble_; }

 private:
  void end_socket();
  void flush();
  void read_monitor();
  void note(uint16_t event, int value);

  const wire::Address address_;
  wire::Context context_;  // ends last: it waits for its sockets
  wire::Socket monitor_;
  wire::Socket socket_;
  wire::WakeUp wake_;
  std::deque<std::string> outbox_;
  int64_t outbox_bytes_ = 0;
  std::string trouble_ = kNotConnected;
  bool handshake_failed_ = false;
  uint64_t refused_ = 0;
  uint64_t sockets_ = 0;
};

Status ZmqClientChannel::open() {
  SWAX_ASSIGN(socket_, wire::make_socket(context_, wire::SocketKind::kDealer, address_));
  SWAX_TRY(wire::set_option(socket_, ZMQ_IMMEDIATE, 1));
  SWAX_TRY(wire::set_option(socket_, ZMQ_RECONNECT_IVL, reconnect_ms()));
  SWAX_TRY(wire::set_option(socket_, ZMQ_RECONNECT_IVL_MAX, kReconnectMsMax));
  const std::string monitor = monitor_address(++sockets_);
  constexpr int kEvents = ZMQ_EVENT_ALL & ~ZMQ_EVENT_MONITOR_STOPPED;
  if (zmq_socket_monitor(socket_.get(), monitor.c_str(), kEvents) != 0)
    return internal_error("zmq monitor: " + wire::zmq_error_text());
  monitor_ = wire::Socket(zmq_socket(context_.get(), ZMQ_PAIR));
  if (!monitor_) return resource_exhausted("zmq monitor: " + wire::zmq_error_text());
  SWAX_TRY(wire::set_option(monitor_, ZMQ_LINGER, 0));
  SWAX_TRY(wire::set_option(monitor_, ZMQ_RCVHWM, 0));  // read at every poll
  if (zmq_connect(monitor_.get(), monitor.c_str()) != 0)
    return internal_error("zmq monitor: " + wire::zmq_error_text());
  if (zmq_connect(socket_.get(), address_.text.c_str()) != 0)
    return internal_error("connect to " + address_.text + ": " + wire::zmq_error_text());
  return ok();
}

std::vector<pb::Envelope> ZmqClientChannel::poll(int timeout_ms, int max) {
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + timeout_ms;
  std::vector<pb::Envelope> taken;
  std::vector<std::string> parts;
  for (;;) {
    read_monitor();
    flush();
    const int64_t left = std::max<int64_t>(0, end_ms - clock.monotonic_ms());
    const bool waiting = !outbox_.empty() && left > kOutboxRetryMs;
    const bool woken =
        wire::wait_readable(socket_, wake_, waiting ? kOutboxRetryMs : static_cast<int>(left));
    for (int looked = 0; looked < 4 * max && static_cast<int>(taken.size()) < max; ++looked) {
      const wire::Receive result = wire::receive(socket_, 1, &parts);
      if (result == wire::Receive::kNothing) break;
      pb::Envelope envelope;
      const FrameProblem problem = result == wire::Receive::kMalformed
                                       ? FrameProblem::kLength
                                       : decode_envelope(parts[0], &envelope);
      if (problem == FrameProblem::kNone) {
        taken.push_back(std::move(envelope));
      } else {
        log_warn("wire", "frame refused",
                 {{"reason", frame_problem_name(problem)}, {"refused", ++refused_}});
      }
    }
    if (woken || !taken.empty() || !waiting) break;
  }
  read_monitor();
  return taken;
}

bool ZmqClientChannel::send(const pb::Envelope& envelope) {
  Result<std::string> frame = encode_frame(envelope);
  if (!frame.ok()) {
    log_error("wire", "message dropped", {{"reason", frame.status().message()}});
    return false;
  }
  flush();
  if (outbox_.empty() && wire::send(socket_, *frame) == wire::Sent::kYes) return true;
  const int64_t bytes = static_cast<int64_t>(frame->size());
  if (outbox_.size() >= kOutboxMessages || outbox_bytes_ + bytes > kOutboxBytes) return false;
  outbox_bytes_ += bytes;
  outbox_.push_back(std::move(*frame));
  return true;
}

void ZmqClientChannel::flush() {
  while (!outbox_.empty() && wire::send(socket_, outbox_.front()) == wire::Sent::kYes) {
    outbox_bytes_ -= static_cast<int64_t>(outbox_.front().size());
    outbox_.pop_front();
  }
}

// The socket's events go first: libzmq's own thread would wait for ever to tell one to a monitor
// that is gone.
void ZmqClientChannel::end_socket() {
  if (socket_) zmq_socket_monitor(socket_.get(), nullptr, 0);
  monitor_.reset();
  socket_.reset();
}

void ZmqClientChannel::reconnect() {
  outbox_.clear();
  outbox_bytes_ = 0;
  handshake_failed_ = false;
  if (trouble_.empty()) trouble_ = kNotConnected;  // else what it was until there is news
  end_socket();
  const Status opened = open();
  if (opened.ok()) return;
  // Without a socket nothing works: the caller's next reconnect tries again.
  trouble_ = opened.message();
  log_error("wire", "no socket", {{"reason", opened.message()}});
}

void ZmqClientChannel::read_monitor() {
  // Each event is two frames: u16 number and i32 value, and the address.
  std::vector<std::string> parts;
  while (wire::receive(monitor_, 2, &parts) == wire::Receive::kMessage) {
    if (parts[0].size() != 6) continue;
    uint16_t event = 0;
    int32_t value = 0;
    std::memcpy(&event, parts[0].data(), sizeof event);
    std::memcpy(&value, parts[0].data() + sizeof event, sizeof value);
    note(event, value);
  }
}

void ZmqClientChannel::note(uint16_t event, int value) {
  const std::string to = " (" + address_.text + ")";
  switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      handshake_failed_ = false;
      trouble_.clear();
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      handshake_failed_ = true;
      trouble_ = std::string("handshake failed: ") + zmq_strerror(value) + to;
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      handshake_failed_ = true;
      trouble_ = "handshake failed: the other side does not speak this protocol" + to;
      break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      handshake_failed_ = true;
      trouble_ = "handshake failed: refused with " + to_text(value) + to;
      break;
    case ZMQ_EVENT_CONNECTED:
      if (!handshake_failed_) trouble_ = "connected, but the handshake is not done" + to;
      break;
    case ZMQ_EVENT_DISCONNECTED:
      if (!handshake_failed_) trouble_ = "connection lost" + to;
      break;
    case ZMQ_EVENT_CLOSED:  // a connect that failed
      handshake_failed_ = false;
      trouble_ = "connection refused or no answer" + to;
      break;
    default:
      break;
  }
}

}  // namespace

Result<std::unique_ptr<ClientChannel>> ClientChannel::connect(const std::string& text) {
  SWAX_ASSIGN(wire::Address address, wire::parse_address(text));
  if (address.port == 0) return invalid_argument("address " + text + ": port 0");
  SWAX_ASSIGN(wire::WakeUp wake, wire::WakeUp::make());
  SWAX_ASSIGN(wire::Context context, wire::make_context());
  auto channel =
      std::make_unique<ZmqClientChannel>(std::move(address), std::move(context), std::move(wake));
  SWAX_TRY(channel->open());
  return std::unique_ptr<ClientChannel>(std::move(channel));
}

}  // namespace swax
