#include "worker/agent/rank_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kPeersMax = 4096;
constexpr int64_t kFirstWordMs = 10'000;  // for a peer that says nothing
// A dying process closes its files, then its status shows. Looks are counted as well: they cannot
// become many while nobody gets any time.
constexpr int64_t kStatusMs = 300;
constexpr int kStatusLooks = 3;
constexpr int64_t kProcessLookMs = 500;  // between looks at a rank's process
constexpr size_t kReadMax = 256 * 1024;  // of one peer at once
constexpr size_t kOutgoingMax = 1024 * 1024;

// The process at the other end, when it is one of this user's.
std::optional<pid_t> peer_process(int fd) {
  ucred who{};
  socklen_t bytes = sizeof who;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return std::nullopt;
  if (who.uid != ::geteuid()) return std::nullopt;
  return who.pid;
}

void queue(std::string* outgoing, const google::protobuf::MessageLite& message) {
  const Result<std::string> frame = encode_frame(message);
  if (frame.ok() && outgoing->size() < kOutgoingMax) *outgoing += *frame;
}

}  // namespace

Status check_socket_path(const std::string& path) {
  if (path.size() < sizeof(sockaddr_un::sun_path)) return ok();
  return invalid_argument("socket " + printable(path, 200) + ": a path of at most 107 bytes");
}

Result<std::unique_ptr<RankSocket>> RankSocket::listen(const std::string& path) {
  SWAX_TRY(check_socket_path(path));
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return internal_error(std::string("socket: ") + std::strerror(errno));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  ::unlink(path.c_str());  // of an agent that was killed; the state's lock is ours
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0)
    return internal_error("listen at " + path + ": " + std::strerror(errno));
  return std::unique_ptr<RankSocket>(new RankSocket(path, std::move(fd)));
}

RankSocket::~RankSocket() { ::unlink(path_.c_str()); }

void RankSocket::add_poll(std::vector<pollfd>* fds) const {
  fds->push_back({.fd = fd_.get(), .events = POLLIN, .revents = 0});
  for (const auto& [id, peer] : peers_) {
    if (peer.ended) {
      if (peer.process_fd.valid())
        fds->push_back({.fd = peer.process_fd.get(), .events = POLLIN, .revents = 0});
      continue;
    }
    const int wanted = POLLIN | (peer.outgoing.empty() ? 0 : POLLOUT);
    fds->push_back({.fd = peer.socket.get(), .events = static_cast<short>(wanted), .revents = 0});
  }
}

std::vector<agent::EventBody> RankSocket::look(int64_t now_ms) {
  std::vector<agent::EventBody> out;
  accept_peers(now_ms);
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = it->second;
    if (!peer.ended) read_peer(it->first, &peer, now_ms, &out);
    if (!peer.ended) write_peer(&peer);
    if (!peer.ended) look_at_process(&peer, now_ms, &out);
    const bool gone = peer.ended && finish_peer(peer, now_ms, &out);
    it = gone ? peers_.erase(it) : std::next(it);
  }
  return out;
}

void RankSocket::accept_peers(int64_t now_ms) {
  for (;;) {
    Fd socket(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    const auto pid = peer_process(socket.get());
    if (!pid || peers_.size() >= kPeersMax) continue;
    Peer& peer = peers_[next_id_++];
    peer.socket = std::move(socket);
    peer.since_ms = now_ms;
    if (const auto process = read_process(*pid)) {
      peer.process = process->id;
      peer.process_fd = open_process(process->id);
    }
  }
}

void RankSocket::end_peer(Peer* peer, int64_t now_ms) {
  peer->ended = true;
  peer->since_ms = now_ms;
  peer->socket.reset();
}

void RankSocket::read_peer(uint64_t id, Peer* peer, int64_t now_ms,
                           std::vector<agent::EventBody>* out) {
  char buffer[16384];
  for (size_t taken = 0; taken < kReadMax;) {
    const ssize_t got = ::recv(peer->socket.get(), buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) return end_peer(peer, now_ms);
    taken += static_cast<size_t>(got);
    peer->incoming.append({buffer, static_cast<size_t>(got)});
    FrameProblem problem = FrameProblem::kNone;
    while (const auto payload = peer->incoming.next(&problem)) {
      if (!take_frame(id, peer, *payload, out)) return end_peer(peer, now_ms);
    }
    if (problem == FrameProblem::kNone) continue;
    log_warn("agent", "broken line to a rank", {{"reason", frame_problem_name(problem)}});
    return end_peer(peer, now_ms);
  }
  const bool silent = !peer->rank && !peer->proxy && now_ms - peer->since_ms > kFirstWordMs;
  if (silent) end_peer(peer, now_ms);
}

bool RankSocket::take_frame(uint64_t id, Peer* peer, const std::string& payload,
                            std::vector<agent::EventBody>* out) {
  if (!peer->rank) return !peer->proxy && take_first(id, peer, payload, out);
  pb::RankMessage message;
  if (!message.ParseFromString(payload) || message.has_hello()) return false;
  if (peer->refused) return true;
  out->emplace_back(agent::RankSaid{.job = peer->hello.job(),
                                    .epoch = peer->hello.epoch(),
                                    .rank = peer->hello.rank(),
                                    .message = std::move(message)});
  return true;
}

bool RankSocket::take_first(uint64_t id, Peer* peer, const std::string& payload,
                            std::vector<agent::EventBody>* out) {
  pb::RankMessage message;
  if (message.ParseFromString(payload) && message.has_hello()) {
    const pb::RankHello& hello = message.hello();
    for (const auto& [other_id, other] : peers_) {
      const bool same = other_id != id && other.rank && !other.refused &&
                        other.hello.job() == hello.job() && other.hello.epoch() == hello.epoch() &&
                        other.hello.rank() == hello.rank();
      if (same) return false;
    }
    peer->rank = true;
    peer->hello = hello;
    out->emplace_back(agent::RankSaid{.job = hello.job(),
                                      .epoch = hello.epoch(),
                                      .rank = hello.rank(),
                                      .message = std::move(message)});
    return true;
  }
  pb::Envelope envelope;
  if (!envelope.ParseFromString(payload) || !envelope.has_launch_remote()) return false;
  const pb::LaunchRemote& launch = envelope.launch_remote();
  peer->proxy = true;
  out->emplace_back(agent::ProxyAsks{.job = launch.job(),
                                     .epoch = launch.epoch(),
                                     .target = launch.target(),
                                     .command = launch.command(),
                                     .proxy = id});
  return true;
}

void RankSocket::write_peer(Peer* peer) {
  while (!peer->outgoing.empty()) {
    const ssize_t put =
        ::send(peer->socket.get(), peer->outgoing.data(), peer->outgoing.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;  // full, or its end shows when it is read
    peer->outgoing.erase(0, static_cast<size_t>(put));
  }
}

void RankSocket::look_at_process(Peer* peer, int64_t now_ms, std::vector<agent::EventBody>* out) {
  if (!peer->rank || peer->refused || now_ms - peer->looked_ms < kProcessLookMs) return;
  peer->looked_ms = now_ms;
  const auto process = read_process(peer->process.pid);
  if (!process || process->id != peer->process) return;
  const bool halted = process->state == 'T' || process->state == 't';
  if (halted == std::exchange(peer->halted, halted)) return;
  out->emplace_back(agent::RankHalted{.job = peer->hello.job(),
                                      .epoch = peer->hello.epoch(),
                                      .rank = peer->hello.rank(),
                                      .halted = halted});
}

// True: nothing more is to be known of it.
bool RankSocket::finish_peer(Peer& peer, int64_t now_ms, std::vector<agent::EventBody>* out) {
  if (!peer.rank || peer.refused) return true;
  ++peer.looks;
  const bool early = now_ms - peer.since_ms < kStatusMs || peer.looks < kStatusLooks;
  std::optional<int> status;
  const bool dead = peer.process_fd.valid() && process_ended(peer.process_fd);
  if (dead) status = ended_status(peer.process_fd, peer.process);
  if (peer.process_fd.valid() && !status && early) return false;
  agent::RankClosed closed{
      .job = peer.hello.job(), .epoch = peer.hello.epoch(), .rank = peer.hello.rank()};
  if (status && WIFEXITED(*status)) closed.exit_code = WEXITSTATUS(*status);
  if (status && WIFSIGNALED(*status)) closed.signal = WTERMSIG(*status);
  out->emplace_back(std::move(closed));
  return true;
}

RankSocket::Peer* RankSocket::newest(const agent::TellRank& command, uint32_t rank) {
  for (auto it = peers_.rbegin(); it != peers_.rend(); ++it) {
    Peer& peer = it->second;
    const bool match = peer.rank && !peer.ended && peer.hello.job() == command.job &&
                       peer.hello.epoch() == command.epoch && peer.hello.rank() == rank;
    if (match) return &peer;
  }
  return nullptr;
}

void RankSocket::tell(const agent::TellRank& command) {
  if (command.rank >= 0) {
    Peer* peer = newest(command, static_cast<uint32_t>(command.rank));
    if (peer == nullptr) return;
    queue(&peer->outgoing, command.message);
    peer->refused = peer->refused || command.message.has_refused();
    return write_peer(peer);
  }
  for (auto& [id, peer] : peers_) {
    if (!peer.rank || peer.ended || peer.hello.job() != command.job ||
        peer.hello.epoch() != command.epoch)
      continue;
    queue(&peer.outgoing, command.message);
    write_peer(&peer);
  }
}

void RankSocket::answer(const agent::ProxyDone& command) {
  const auto peer = peers_.find(command.proxy);
  if (peer == peers_.end() || !peer->second.proxy || peer->second.ended) return;
  pb::Envelope envelope;
  envelope.mutable_remote_exited()->set_proxy(command.proxy);
  envelope.mutable_remote_exited()->set_exit_code(command.exit_code);
  envelope.mutable_remote_exited()->set_reason(command.reason);
  queue(&peer->second.outgoing, envelope);
  write_peer(&peer->second);
}

}  // namespace swax
