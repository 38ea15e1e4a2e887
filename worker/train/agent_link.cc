#include "worker/train/agent_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "proto/frame.h"
#include "worker/train/exit_codes.h"
#include "worker/train/step_queue.h"

namespace swax {
namespace {

constexpr int kCloseWaitMs = 2000;

Result<Fd> connect_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return invalid_argument("agent socket path " + path + ": at most 107 bytes");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return internal_error(std::string("socket: ") + std::strerror(errno));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return unavailable("agent at " + path + ": " + std::strerror(errno));
  return fd;
}

}  // namespace

struct AgentLink::Impl {
  Impl(AgentLinkOptions o, Fd s, Fd w)
      : options(std::move(o)), socket(std::move(s)), wakeup(std::move(w)) {
    queue_message([&](pb::RankMessage& m) { *m.mutable_hello() = options.hello; });
    thread = std::thread([this] { run(); });
  }
  ~Impl() {
    {
      std::lock_guard lock(mutex);
      closing = true;
    }
    wake();
    thread.join();
  }

  void wake() const {
    const uint64_t one = 1;
    if (::write(wakeup.get(), &one, sizeof one) < 0 && errno != EAGAIN)
      log_warn("train", "agent link not woken");
  }

  // Messages that must arrive. Called off the hot path.
  template <typename Fill>
  void queue_message(const Fill& fill) {
    pb::RankMessage message;
    fill(message);
    auto frame = encode_frame(message);
    if (!frame.ok()) {
      log_error("train", "message to the agent is too large",
                {{"reason", frame.status().message()}});
      return;
    }
    {
      std::lock_guard lock(mutex);
      outgoing.push_back(std::move(*frame));
    }
    wake();
  }

  // Everything that is ready to go, as one run of bytes.
  void collect() {
    std::lock_guard lock(mutex);
    StepQueue::Item item;
    while (steps.pop(&item)) {
      pb::RankMessage message;
      if (options.hello.rank() != 0) item.digests.clear();  // rank 0 speaks for the run
      *message.mutable_step() =
          step_record(item.report, item.digests, state_names, options.hello.epoch(),
                      static_cast<int>(options.hello.world_size()), item.wall_ms);
      if (auto frame = encode_frame(message); frame.ok()) bytes += *frame;
    }
    while (!outgoing.empty()) {
      bytes += outgoing.front();
      outgoing.pop_front();
    }
  }

  bool idle() {
    std::lock_guard lock(mutex);
    return bytes.empty() && outgoing.empty() && steps.empty();
  }

  void run() {
    int64_t close_by = 0;
    for (;;) {
      collect();
      pollfd fds[2] = {
          {socket.get(), static_cast<short>(POLLIN | (bytes.empty() ? 0 : POLLOUT)), 0},
          {wakeup.get(), POLLIN, 0}};
      ::poll(fds, 2, 200);
      uint64_t ignored = 0;
      if (fds[1].revents != 0 && ::read(wakeup.get(), &ignored, sizeof ignored) < 0 &&
          errno != EAGAIN)
        return;
      const bool heard = (fds[0].revents & (POLLIN | POLLHUP | POLLERR)) == 0 || receive();
      const bool sent = (fds[0].revents & POLLOUT) == 0 || send();
      if (!heard || !sent) return leave(refusal.empty() ? "the agent closed the line" : refusal);
      {
        std::lock_guard lock(mutex);
        if (!closing) continue;
      }
      if (close_by == 0) close_by = clock.monotonic_ms() + kCloseWaitMs;
      if (idle() || clock.monotonic_ms() > close_by) return;
    }
  }

  bool send() {
    const ssize_t n = ::send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    std::lock_guard lock(mutex);
    bytes.erase(0, static_cast<size_t>(n));
    if (bytes.empty()) flushed.notify_all();
    return true;
  }

  bool receive() {
    char chunk[4096];
    const ssize_t n = ::recv(socket.get(), chunk, sizeof chunk, MSG_DONTWAIT);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    incoming.append({chunk, static_cast<size_t>(n)});
    FrameProblem problem = FrameProblem::kNone;
    while (auto payload = incoming.next(&problem)) {
      pb::AgentMessage message;
      if (!message.ParseFromString(*payload)) continue;
      if (message.has_refused()) {
        refusal = "the agent refused this attempt: " + message.refused();
        return false;
      }
      if (message.has_stop() && options.on_stop) options.on_stop();
      if (message.has_save() && options.on_save) options.on_save();
    }
    return problem == FrameProblem::kNone;
  }

  void leave(const std::string& why) {
    {
      std::lock_guard lock(mutex);
      if (closing) return;
    }
    log_error("train", "rank leaves", {{"reason", why}});
    log_flush();
    ::_exit(kExitRetry);
  }

  AgentLinkOptions options;
  Fd socket, wakeup;
  std::mutex mutex;
  std::condition_variable flushed;
  std::deque<std::string> outgoing;
  StepQueue steps;
  std::vector<std::string> state_names;
  std::string bytes;  // written by the link's thread only
  FrameBuffer incoming;
  std::string refusal;
  bool closing = false;
  SystemClock clock;
  std::thread thread;
};

Result<std::unique_ptr<AgentLink>> AgentLink::connect(AgentLinkOptions options) {
  SWAX_ASSIGN(Fd socket, connect_unix(options.socket_path));
  Fd wakeup(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup.valid()) return internal_error(std::string("eventfd: ") + std::strerror(errno));
  return std::unique_ptr<AgentLink>(new AgentLink(
      std::make_unique<Impl>(std::move(options), std::move(socket), std::move(wakeup))));
}

AgentLink::AgentLink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AgentLink::~AgentLink() = default;

void AgentLink::set_state_names(std::vector<std::string> names) {
  std::lock_guard lock(impl_->mutex);
  impl_->steps.size_digests(names.size());
  impl_->state_names = std::move(names);
}

void AgentLink::phase(std::string_view name) {
  impl_->queue_message([&](pb::RankMessage& m) { m.set_phase(std::string(name)); });
}

void AgentLink::step(const StepReport& report) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->steps.push(report, impl_->clock.wall_ms());
  }
  impl_->wake();
}

void AgentLink::validation(const ValidationReport& report) {
  impl_->queue_message([&](pb::RankMessage& m) {
    *m.mutable_validation() = validation_record(report, impl_->options.hello.epoch());
  });
}

void AgentLink::event(std::string_view kind, int64_t step, std::string_view text) {
  impl_->queue_message([&](pb::RankMessage& m) {
    pb::EventRecord& e = *m.mutable_event();
    e.set_kind(std::string(kind));
    e.set_step(static_cast<uint64_t>(step));
    e.set_text(std::string(text));
    e.set_epoch(impl_->options.hello.epoch());
    e.set_wall_ms(impl_->clock.wall_ms());
  });
}

void AgentLink::durable(const pb::RankDurable& report) {
  impl_->queue_message([&](pb::RankMessage& m) { *m.mutable_durable() = report; });
}

void AgentLink::done(const pb::DoneReport& report) {
  impl_->queue_message([&](pb::RankMessage& m) { *m.mutable_done() = report; });
}

void AgentLink::report(const pb::HelloReport& report) {
  impl_->queue_message([&](pb::RankMessage& m) { *m.mutable_report() = report; });
}

void AgentLink::failure(std::string_view reason) {
  impl_->queue_message([&](pb::RankMessage& m) { m.set_failure(std::string(reason)); });
}

bool AgentLink::flush(int timeout_ms) {
  std::unique_lock lock(impl_->mutex);
  return impl_->flushed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] {
    return impl_->bytes.empty() && impl_->outgoing.empty() && impl_->steps.empty();
  });
}

}  // namespace swax
