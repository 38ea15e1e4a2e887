#include "ops/cli/client_session.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>

#include "ops/cli/output.h"
#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kTryMs = 2000;
constexpr int64_t kJitterMs = 500;  // so that many clients do not come back at the same moment
constexpr const char* kAddressVariable = "SWAX_COORDINATOR";

int64_t jitter_ms() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) return 0;
  return static_cast<int64_t>(bits % static_cast<uint64_t>(kJitterMs));
}

bool changes_something(const pb::Request& request) {
  return request.has_submit() || request.has_cancel() || request.has_resume();
}

std::string address_of(const Args& args) {
  if (args.has("--coordinator")) return args.text("--coordinator");
  const char* variable = std::getenv(kAddressVariable);
  return variable == nullptr ? "" : variable;
}

}  // namespace

bool may_pass(const pb::Reply& reply) {
  return reply.code() == kExitUnreachable || reply.code() == kExitInternal;
}

std::string new_request_id() {
  Hash128 bits{};
  SWAX_CHECK(::getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits));
  return bits.hex();
}

Result<std::string> request_id(const Args& args) {
  if (!args.has("--request-id")) return new_request_id();
  const std::string& id = args.text("--request-id");
  if (id.size() == 32 && id.find_first_not_of("0123456789abcdef") == std::string::npos) return id;
  return invalid_argument("--request-id: must be 32 hex digits, 0-9 and a-f");
}

Result<ClientSession> ClientSession::connect(const std::string& address) {
  const bool bare = address.find("://") == std::string::npos;
  ClientSession session(bare ? "tcp://" + address : address);
  auto channel = ClientChannel::connect(session.address_);
  if (!channel.ok()) return channel.status().with_context("coordinator");
  session.channel_ = std::move(channel).value();
  return session;
}

bool ClientSession::wait_for(const std::string& request_id, int64_t end_ms, pb::Reply* reply) {
  for (int64_t left = end_ms - clock_.monotonic_ms(); left > 0;
       left = end_ms - clock_.monotonic_ms()) {
    for (pb::Envelope& envelope : channel_->poll(static_cast<int>(left), 16)) {
      // An answer to an earlier try of another request may still be on its way.
      if (!envelope.has_reply() || envelope.request_id() != request_id) continue;
      *reply = std::move(*envelope.mutable_reply());
      return true;
    }
  }
  return false;
}

std::string ClientSession::why_nothing_is_heard() const {
  const std::string trouble = channel_->trouble();
  return trouble.empty() ? "connected to " + address_ + ", but no answer came" : trouble;
}

pb::Reply ClientSession::ask(const pb::Request& request, const Patience& patience,
                             const std::string& request_id) {
  const std::string id = request_id.empty() ? new_request_id() : request_id;
  const int64_t began_ms = clock_.monotonic_ms();
  const bool limited = patience.total_ms > 0 && patience.total_ms < INT64_MAX - began_ms;
  const int64_t end_ms = limited ? began_ms + patience.total_ms : INT64_MAX;
  std::string why;
  for (int tries = 1;; ++tries) {
    pb::Envelope envelope;
    envelope.set_request_id(id);
    envelope.set_sequence(++sequence_);
    *envelope.mutable_request() = request;
    const bool sent = channel_->send(envelope);
    const int64_t try_ends_ms = clock_.monotonic_ms() + kTryMs + jitter_ms();
    pb::Reply reply;
    if (wait_for(id, std::min(end_ms, try_ends_ms), &reply)) {
      retried_ = tries > 1;
      return reply;
    }
    why = sent ? why_nothing_is_heard() : "the request does not fit into one message";
    channel_->reconnect();
    const bool over = clock_.monotonic_ms() >= end_ms;
    if (!sent || over || (patience.tries > 0 && tries >= patience.tries)) break;
    if (tries == 1 && on_retry_) on_retry_(why);
  }
  pb::Reply reply;
  reply.set_code(kExitUnreachable);
  std::string text = "no answer from the coordinator in " +
                     duration_text(clock_.monotonic_ms() - began_ms) + ": " + why;
  if (changes_something(request))
    text += "\nrequest id " + id + ": it may have been taken; the same command with --request-id " +
            id + " is carried out once in any case";
  reply.set_error(std::move(text));
  return reply;
}

OptionSpec coordinator_option() {
  return {.name = "--coordinator",
          .value = "ADDRESS",
          .doc = "of the service, tcp://IP:PORT; default $SWAX_COORDINATOR"};
}

bool coordinator_is_named(const Args& args) { return !address_of(args).empty(); }

Result<ClientSession> connect_coordinator(const Args& args) {
  const std::string address = address_of(args);
  if (address.empty())
    return invalid_argument(std::string("which coordinator? give --coordinator tcp://IP:PORT or "
                                        "set ") +
                            kAddressVariable + " (`swax coordinator` prints its address)");
  return ClientSession::connect(address);
}

int fail_reply(const pb::Reply& reply) {
  for (const std::string_view line : split(reply.error(), '\n'))
    print_message(one_line(line, 1000));
  return reply.code();
}

}  // namespace swax
