// Channels of the control plane over ZeroMQ: a ServerChannel (ROUTER) at the coordinator, a
// ClientChannel (DEALER) at workers and clients. The only folder that sees zmq. Nothing blocks but
// poll(); outboxes are bounded; a message that cannot be sent is dropped and counted, because what
// must arrive is sent again by its owner. Options (design, 5-decisions; research
// orchestration 4.2): ROUTER_MANDATORY 1 with DONTWAIT, ROUTER_HANDOVER 0, no identities of ours,
// LINGER 0, IMMEDIATE 1, MAXMSGSIZE 256 KiB, jittered reconnect, bounded HWMs.
// Addresses are literal; nothing resolves the own host name. Threads: a channel is made, used and
// closed by one thread. wake() may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "proto/frame.h"

namespace swax {

struct Received {
  uint64_t peer = 0;  // stable handle of a connection, never reused
  pb::Envelope envelope;
  std::string request_bytes;  // serialized body of a request, for the hash that recognises a retry
};

class ServerChannel {
 public:
  // tcp://127.0.0.1:PORT (0: any free port); other addresses only with `insecure`.
  // kFailedPrecondition when the address is in use.
  static Result<std::unique_ptr<ServerChannel>> bind(const std::string& address, bool insecure);
  virtual ~ServerChannel() = default;
  virtual std::string address() const = 0;  // with the real port
  // Up to `max` messages that arrive within timeout_ms (less when woken). Refused frames are
  // counted, not returned.
  virtual std::vector<Received> poll(int timeout_ms, int max) = 0;
  // false: the peer is gone or does not read (dropped, counted).
  virtual bool send(uint64_t peer, const pb::Envelope& envelope) = 0;
  virtual void forget(uint64_t peer) = 0;
  virtual void wake() = 0;
  virtual std::map<std::string, uint64_t> refused() const = 0;  // by reason
  virtual uint64_t peers() const = 0;
};

class ClientChannel {
 public:
  static Result<std::unique_ptr<ClientChannel>> connect(const std::string& address);
  virtual ~ClientChannel() = default;
  virtual std::vector<pb::Envelope> poll(int timeout_ms, int max) = 0;
  virtual bool send(const pb::Envelope& envelope) = 0;
  virtual void reconnect() = 0;  // closes the socket and opens a new one
  virtual void wake() = 0;
  // Why nothing is heard, from the socket monitor: "connection refused", "handshake failed: ...";
  // empty when connected.
  virtual std::string trouble() const = 0;
};

}  // namespace swax
