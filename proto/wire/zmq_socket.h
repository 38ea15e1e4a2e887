// What both channels need of libzmq, with Status instead of errno: context, socket, one message in
// one frame, a wake-up descriptor, literal addresses. Private to proto/wire.
// Threads: as the channels; WakeUp::raise may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/status.h"

namespace swax::wire {

struct ContextEnd {
  void operator()(void* context) const;
};
struct SocketEnd {
  void operator()(void* socket) const;
};
using Context = std::unique_ptr<void, ContextEnd>;
using Socket = std::unique_ptr<void, SocketEnd>;

std::string zmq_error_text();  // of the calling thread's last failure

Result<Context> make_context();
// tcp://A.B.C.D:PORT or tcp://[V6]:PORT; names are refused, nothing is resolved.
struct Address {
  std::string text;
  bool loopback = false;
  bool v6 = false;
  int port = 0;  // 0: any
};
Result<Address> parse_address(std::string_view text);

// A socket with the options both ends share: no linger, size limit, keep-alive.
enum class SocketKind { kRouter, kDealer };
Result<Socket> make_socket(const Context& context, SocketKind kind, const Address& address);
Status set_option(const Socket& socket, int option, int value);

// Receives one message of exactly `frames` frames without waiting; a message with more or fewer
// frames gives kMalformed and is read to its end.
enum class Receive { kMessage, kMalformed, kNothing };
Receive receive(const Socket& socket, size_t frames, std::vector<std::string>* out);

// Sends without waiting.
enum class Sent { kYes, kFull, kGone };
Sent send_to(const Socket& router, std::string_view routing_id, std::string_view frame);
Sent send(const Socket& dealer, std::string_view frame);

// Wakes a poll from another thread.
class WakeUp {
 public:
  static Result<WakeUp> make();  // kResourceExhausted: no descriptor is left
  int fd() const { return fd_.get(); }
  void raise() const;
  void clear() const;

 private:
  explicit WakeUp(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// Waits until the socket can be read, the time is over or wake was raised (true; it is cleared).
bool wait_readable(const Socket& socket, const WakeUp& wake, int timeout_ms);

}  // namespace swax::wire
