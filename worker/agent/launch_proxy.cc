#include "worker/agent/launch_proxy.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "proto/base/text.h"
#include "proto/frame.h"
#include "worker/agent/rank_socket.h"

namespace swax {
namespace {

constexpr int kRefused = 255;

int fail_proxy(const std::string& why) {
  std::fprintf(stderr, "swax launch-proxy: %s\n", why.c_str());
  return kRefused;
}

Result<Fd> connect_agent(const std::string& path) {
  SWAX_TRY(check_socket_path(path));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return unavailable("agent at " + path + ": " + std::strerror(errno));
  return fd;
}

Status send_all(const Fd& fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return unavailable(std::string("agent: ") + std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return ok();
}

// kUnavailable: the agent has gone.
Result<pb::Envelope> next_message(const Fd& fd) {
  FrameBuffer incoming;
  FrameProblem problem = FrameProblem::kNone;
  char buffer[4096];
  for (;;) {
    if (const auto payload = incoming.next(&problem)) {
      pb::Envelope envelope;
      if (!envelope.ParseFromString(*payload)) return data_loss("agent: no message");
      return envelope;
    }
    if (problem != FrameProblem::kNone) return data_loss("agent: broken frame");
    const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return unavailable("the agent has gone");
    incoming.append({buffer, static_cast<size_t>(got)});
  }
}

}  // namespace

int run_launch_proxy(const std::string& host, const std::vector<std::string>& command) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it serves mpirun only
  for (const int signal : {SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGTERM})
    ::signal(signal, SIG_IGN);  // meant for the agent (child.h); mpirun has unblocked them
  const char* folder = std::getenv("SWAX_AGENT_DIR");
  const char* node = std::getenv("SWAX_WORKER");
  const char* job = std::getenv("SWAX_JOB");
  const char* epoch = std::getenv("SWAX_EPOCH");
  if (folder == nullptr || node == nullptr || job == nullptr || epoch == nullptr)
    return fail_proxy("is started by mpirun below `swax worker`, not by hand");
  uint64_t number = 0;
  std::from_chars(epoch, epoch + std::strlen(epoch), number);
  std::string words;
  for (const std::string& word : command) words += (words.empty() ? "" : " ") + word;
  pb::Envelope asks;
  pb::LaunchRemote& launch = *asks.mutable_launch_remote();
  launch.set_job(job);
  launch.set_epoch(number);
  launch.set_target(host);
  launch.set_command(words);
  const Result<std::string> frame = encode_frame(asks);
  if (!frame.ok()) return fail_proxy(frame.status().message());
  const Result<Fd> fd = connect_agent(join_path(folder, std::string(node) + ".sock"));
  if (!fd.ok()) return fail_proxy(fd.status().message());
  if (const Status s = send_all(*fd, *frame); !s.ok()) return fail_proxy(s.message());
  const Result<pb::Envelope> answer = next_message(*fd);
  if (!answer.ok()) return fail_proxy(answer.status().message());
  if (!answer->remote_exited().reason().empty())
    std::fprintf(stderr, "swax launch-proxy: %s: %s\n", host.c_str(),
                 printable(answer->remote_exited().reason(), 400).c_str());
  return answer->remote_exited().exit_code();
}

}  // namespace swax
