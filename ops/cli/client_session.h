// A client's talk with the coordinator, lazy-pirate fashion: a request is sent, and when no answer
// to it comes within two seconds, sent again over a new socket with the same request id, so that it
// is carried out once whatever gets lost (research orchestration 4.3, rules 4 and 8). Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ops/cli/args.h"
#include "proto/base/clock.h"
#include "proto/control.pb.h"
#include "proto/wire/channel.h"

namespace swax {

constexpr int kExitUnreachable = 5, kExitWaitTimedOut = 124;

// The coordinator is silent, or says that it cannot write its state: later it may answer.
bool may_pass(const pb::Reply& reply);

struct Patience {
  int tries = 3;         // 0: as many as total_ms allows
  int64_t total_ms = 0;  // 0: as long as the tries take
};

std::string new_request_id();  // 32 hex digits from the system's random source
// --request-id, else a new one. kInvalidArgument: what was given is not 32 hex digits.
Result<std::string> request_id(const Args& args);

class ClientSession {
 public:
  // kInvalidArgument: the address is not tcp://IP:PORT (tcp:// may be left out).
  static Result<ClientSession> connect(const std::string& address);

  // The answer; its code is the exit code. Code 5: nothing was heard; the text says why, and names
  // the request id where the request changes something. An empty request id: a new one.
  pb::Reply ask(const pb::Request& request, const Patience& patience,
                const std::string& request_id = "");
  pb::Reply read(const pb::Request& request) { return ask(request, {}); }

  const std::string& address() const { return address_; }
  bool retried() const { return retried_; }  // the newest answer came to a second or later try
  // Called once per request, before its second try, with the reason.
  void on_retry(std::function<void(const std::string&)> say) { on_retry_ = std::move(say); }

 private:
  explicit ClientSession(std::string address) : address_(std::move(address)) {}
  bool wait_for(const std::string& request_id, int64_t end_ms, pb::Reply* reply);
  std::string why_nothing_is_heard() const;

  std::string address_;
  std::unique_ptr<ClientChannel> channel_;
  std::function<void(const std::string&)> on_retry_;
  SystemClock clock_;
  uint64_t sequence_ = 0;
  bool retried_ = false;
};

// --coordinator, else SWAX_COORDINATOR. kInvalidArgument says what to set.
OptionSpec coordinator_option();
Result<ClientSession> connect_coordinator(const Args& args);
bool coordinator_is_named(const Args& args);

// Says the error of an answer on stderr, line by line; its exit code.
int fail_reply(const pb::Reply& reply);

}  // namespace swax
