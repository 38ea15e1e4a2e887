// The ranks' line against real processes: a forked child speaks as a rank and dies.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "proto/base/clock.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/rank_socket.h"

namespace swax {
namespace {

int connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
  return fd;
}

std::string hello(uint32_t rank) {
  pb::RankMessage message;
  message.mutable_hello()->set_job("job");
  message.mutable_hello()->set_epoch(7);
  message.mutable_hello()->set_rank(rank);
  return *encode_frame(message);
}

// The events until one of type T; fails after a minute.
template <typename T>
T expect(RankSocket& socket, int64_t* waited_ms = nullptr) {
  SystemClock clock;
  const int64_t begin = clock.monotonic_ms();
  while (clock.monotonic_ms() - begin < 60000) {
    for (agent::EventBody& event : socket.look(clock.monotonic_ms())) {
      if (waited_ms != nullptr) *waited_ms = clock.monotonic_ms() - begin;
      if (auto* wanted = std::get_if<T>(&event)) return *wanted;
    }
    std::vector<pollfd> fds;
    socket.add_poll(&fds);
    ::poll(fds.data(), fds.size(), 20);
  }
  ADD_FAILURE() << "no such event within 60 s";
  return {};
}

// A child that connects, sends `bytes` and waits to be killed or for `exit_code`.
pid_t rank_process(const std::string& path, const std::string& bytes, int exit_code) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  const int fd = connect_to(path);
  if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) < 0) ::_exit(70);
  if (exit_code >= 0) ::_exit(exit_code);
  ::pause();
  ::_exit(71);
}

TEST(RankSocket, AKilledRankIsSeenWithinHalfASecondAndWithItsSignal) {
  const ScratchDir dir;
  const std::string path = dir.path() + "/n.sock";
  const auto socket = RankSocket::listen(path);
  ASSERT_TRUE(socket.ok()) << socket.status().message();
  std::vector<int64_t> waits_ms;
  for (int i = 0; i < 5; ++i) {
    const pid_t pid = rank_process(path, hello(1), -1);
    EXPECT_EQ(expect<agent::RankSaid>(**socket).message.hello().rank(), 1U);
    ::kill(pid, SIGKILL);
    int64_t waited_ms = 0;
    const auto closed = expect<agent::RankClosed>(**socket, &waited_ms);
    EXPECT_EQ(closed.job, "job");
    EXPECT_EQ(closed.epoch, 7U);
    EXPECT_EQ(closed.rank, 1U);
    EXPECT_EQ(closed.signal, SIGKILL);
    waits_ms.push_back(waited_ms);
    ::waitpid(pid, nullptr, 0);
  }
  std::sort(waits_ms.begin(), waits_ms.end());
  EXPECT_LT(waits_ms[waits_ms.size() / 2], 500);
}

// Between the two a machine may stand still: that is no time in which the status could have come.
TEST(RankSocket, WaitsForTheStatusAcrossAPause) {
  const ScratchDir dir;
  const std::string path = dir.path() + "/n.sock", closed_mark = dir.path() + "/closed";
  const auto socket = RankSocket::listen(path);
  ASSERT_TRUE(socket.ok());
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int fd = connect_to(path);
    const std::string bytes = hello(2);
    if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) < 0) ::_exit(70);
    ::close(fd);
    if (!write_atomic(closed_mark, "x").ok()) ::_exit(72);
    ::pause();
    ::_exit(71);
  }
  while (!path_exists(closed_mark)) ::poll(nullptr, 0, 5);
  int64_t now_ms = 1000;
  EXPECT_EQ((*socket)->look(now_ms).size(), 1U);  // its hello; then its line has ended
  now_ms += 3000;
  EXPECT_TRUE((*socket)->look(now_ms).empty()) << "nothing is told without its status";
  ::kill(pid, SIGKILL);
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), nullptr, WEXITED | WNOWAIT), 0);
  const std::vector<agent::EventBody> events = (*socket)->look(now_ms);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(std::get<agent::RankClosed>(events[0]).signal, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(RankSocket, TellsThatAProcessIsStoppedAndGoesOn) {
  const ScratchDir dir;
  const std::string path = dir.path() + "/n.sock";
  const auto socket = RankSocket::listen(path);
  ASSERT_TRUE(socket.ok());
  const pid_t pid = rank_process(path, hello(3), -1);
  expect<agent::RankSaid>(**socket);
  ::kill(pid, SIGSTOP);
  const auto halted = expect<agent::RankHalted>(**socket);
  EXPECT_EQ(halted.epoch, 7U);
  EXPECT_EQ(halted.rank, 3U);
  EXPECT_TRUE(halted.halted);
  ::kill(pid, SIGCONT);
  EXPECT_FALSE(expect<agent::RankHalted>(**socket).halted);
  ::kill(pid, SIGKILL);
  EXPECT_EQ(expect<agent::RankClosed>(**socket).signal, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(RankSocket, TellsTheExitCode) {
  const ScratchDir dir;
  const std::string path = dir.path() + "/n.sock";
  const auto socket = RankSocket::listen(path);
  ASSERT_TRUE(socket.ok());
  const pid_t pid = rank_process(path, hello(0), 78);
  const auto closed = expect<agent::RankClosed>(**socket);
  EXPECT_EQ(closed.exit_code, 78);
  EXPECT_EQ(closed.signal, 0);
  ::waitpid(pid, nullptr, 0);
}

TEST(RankSocket, RefusesOnlyWhoIsRefused) {
  const ScratchDir dir;
  const std::string path = dir.path() + "/n.sock";
  const auto socket = RankSocket::listen(path);
  ASSERT_TRUE(socket.ok());
  const int fd = connect_to(path);
  const std::string bytes = hello(0);
  ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  expect<agent::RankSaid>(**socket);
  agent::TellRank tell{.job = "job", .epoch = 7, .rank = 0, .message = {}};
  tell.message.set_refused("no");
  (*socket)->tell(tell);
  char buffer[512];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  ASSERT_GT(got, 0);
  FrameBuffer frames;
  FrameProblem problem = FrameProblem::kNone;
  frames.append({buffer, static_cast<size_t>(got)});
  pb::AgentMessage answer;
  ASSERT_TRUE(answer.ParseFromString(frames.next(&problem).value_or("")));
  EXPECT_EQ(answer.refused(), "no");
  // Its end is nobody's death.
  ::close(fd);
  SystemClock clock;
  EXPECT_TRUE((*socket)->look(clock.monotonic_ms()).empty());
}

TEST(RankSocket, DropsBrokenLines) {
  const ScratchDir dir;
  const std::string path = dir.path() + "/n.sock";
  const auto socket = RankSocket::listen(path);
  ASSERT_TRUE(socket.ok());
  const int fd = connect_to(path);
  const std::string garbage(64, 'x');
  ASSERT_EQ(::write(fd, garbage.data(), garbage.size()), static_cast<ssize_t>(garbage.size()));
  SystemClock clock;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE((*socket)->look(clock.monotonic_ms()).empty());
  char byte = 0;
  EXPECT_LE(::read(fd, &byte, 1), 0);  // closed, not hanging
  ::close(fd);
}

TEST(RankSocket, RefusesLongPaths) {
  const auto socket = RankSocket::listen("/tmp/" + std::string(120, 'a'));
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace swax
