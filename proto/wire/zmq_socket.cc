#include "proto/wire/zmq_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <cerrno>
#include <charconv>

#include "proto/base/ids.h"
#include "proto/base/text.h"

namespace swax::wire {
namespace {

constexpr int kHandshakeMs = 10000;
constexpr int kUnackedMs = 20000;  // a peer that was switched off
// Few: the pipes of libzmq hold messages of up to 256 KiB each, and beside them stands an outbox
// of ours that counts bytes.
constexpr int kSendMessages = 16;
constexpr int kReceiveMessages = 64;

struct Message {
  Message() { zmq_msg_init(&raw); }
  ~Message() { zmq_msg_close(&raw); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  std::string_view view() {
    return {static_cast<const char*>(zmq_msg_data(&raw)), zmq_msg_size(&raw)};
  }
  zmq_msg_t raw{};
};

bool receive_frame(const Socket& socket, Message* message) {
  int bytes = 0;
  do {
    bytes = zmq_msg_recv(&message->raw, socket.get(), ZMQ_DONTWAIT);
  } while (bytes < 0 && errno == EINTR);
  return bytes >= 0;
}

Sent send_frame(const Socket& socket, std::string_view bytes, int flags) {
  int sent = 0;
  do {
    sent = zmq_send(socket.get(), bytes.data(), bytes.size(), flags | ZMQ_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Sent::kYes;
  return errno == EAGAIN ? Sent::kFull : Sent::kGone;
}

bool is_loopback(const std::string& host, bool v6) {
  if (v6) {
    in6_addr address{};
    return inet_pton(AF_INET6, host.c_str(), &address) == 1 && IN6_IS_ADDR_LOOPBACK(&address);
  }
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

bool is_literal(const std::string& host, bool v6) {
  unsigned char address[sizeof(in6_addr)];
  return inet_pton(v6 ? AF_INET6 : AF_INET, host.c_str(), address) == 1;
}

}  // namespace

void ContextEnd::operator()(void* context) const {
  while (zmq_ctx_term(context) != 0 && errno == EINTR) {
  }
}
void SocketEnd::operator()(void* socket) const { zmq_close(socket); }

std::string zmq_error_text() { return zmq_strerror(errno); }

Result<Context> make_context() {
  Context context(zmq_ctx_new());
  if (!context) return internal_error("zmq context: " + zmq_error_text());
  return context;
}

Status set_option(const Socket& socket, int option, int value) {
  if (zmq_setsockopt(socket.get(), option, &value, sizeof value) == 0) return ok();
  return internal_error("zmq option " + to_text(option) + "=" + to_text(value) + ": " +
                        zmq_error_text());
}

Result<Socket> make_socket(const Context& context, SocketKind kind, const Address& address) {
  const int type = kind == SocketKind::kRouter ? ZMQ_ROUTER : ZMQ_DEALER;
  Socket socket(zmq_socket(context.get(), type));
  if (!socket) return resource_exhausted("zmq socket: " + zmq_error_text());
  struct Option {
    int name, value;
  };
  // No ZMTP heartbeats: with libzmq 4.3.4 their timer meets an engine whose input was stopped by
  // back-pressure, and an assertion ends the process (libzmq issues 3937, 4767). Beats of our own
  // and TCP keep-alive do their work.
  constexpr Option kOptions[] = {
      {ZMQ_LINGER, 0},
      {ZMQ_SNDHWM, kSendMessages},
      {ZMQ_RCVHWM, kReceiveMessages},
      {ZMQ_HANDSHAKE_IVL, kHandshakeMs},
      {ZMQ_TCP_MAXRT, kUnackedMs},
      {ZMQ_TCP_KEEPALIVE, 1},
      {ZMQ_TCP_KEEPALIVE_IDLE, 10},
      {ZMQ_TCP_KEEPALIVE_INTVL, 5},
      {ZMQ_TCP_KEEPALIVE_CNT, 3},
  };
  if (address.v6) SWAX_TRY(set_option(socket, ZMQ_IPV6, 1));
  for (const Option& option : kOptions) SWAX_TRY(set_option(socket, option.name, option.value));
  constexpr int64_t kMessageBytesMax = 256 * kKiB;  // the peer that sends more is disconnected
  if (zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kMessageBytesMax, sizeof kMessageBytesMax) != 0)
    return internal_error("zmq message size: " + zmq_error_text());
  return socket;
}

Result<Address> parse_address(std::string_view text) {
  const Status bad = invalid_argument("address " + printable(text) +
                                      ": must be tcp://A.B.C.D:PORT or tcp://[IPV6]:PORT");
  constexpr std::string_view kScheme = "tcp://";
  const size_t colon = text.rfind(':');
  if (!text.starts_with(kScheme) || colon == std::string_view::npos || colon < kScheme.size())
    return bad;
  std::string host(text.substr(kScheme.size(), colon - kScheme.size()));
  const bool v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (v6) host = host.substr(1, host.size() - 2);
  const std::string_view port = text.substr(colon + 1);
  Address address;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || port.size() > 5 ||
      address.port < 0 || address.port > 65535 || !is_literal(host, v6)) {
    return bad;
  }
  address.text = std::string(text);
  address.v6 = v6;
  address.loopback = is_loopback(host, v6);
  return address;
}

Receive receive(const Socket& socket, size_t frames, std::vector<std::string>* out) {
  out->clear();
  size_t count = 0;
  for (bool more = true; more; ++count) {
    Message message;
    // A message arrives whole: only its first frame can be missing.
    if (!receive_frame(socket, &message))
      return count == 0 ? Receive::kNothing : Receive::kMalformed;
    if (count < frames) out->emplace_back(message.view());
    more = zmq_msg_more(&message.raw) != 0;
  }
  return count == frames ? Receive::kMessage : Receive::kMalformed;
}

Sent send_to(const Socket& router, std::string_view routing_id, std::string_view frame) {
  // With ROUTER_MANDATORY the first frame decides; the second belongs to the same message.
  const Sent first = send_frame(router, routing_id, ZMQ_SNDMORE);
  return first == Sent::kYes ? send_frame(router, frame, 0) : first;
}

Sent send(const Socket& dealer, std::string_view frame) { return send_frame(dealer, frame, 0); }

Result<WakeUp> WakeUp::make() {
  Fd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) return resource_exhausted("no descriptor is left for a wake-up");
  return WakeUp(std::move(fd));
}

void WakeUp::raise() const {
  const uint64_t one = 1;
  // It fails only when it is raised 2^64 - 1 times already.
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
}

void WakeUp::clear() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof count);
}

bool wait_readable(const Socket& socket, const WakeUp& wake, int timeout_ms) {
  zmq_pollitem_t items[2] = {{socket.get(), -1, ZMQ_POLLIN, 0},
                             {nullptr, wake.fd(), ZMQ_POLLIN, 0}};
  const int ready = zmq_poll(items, 2, timeout_ms);
  if (ready <= 0 || (items[1].revents & ZMQ_POLLIN) == 0) return false;
  wake.clear();
  return true;
}

}  // namespace swax::wire
