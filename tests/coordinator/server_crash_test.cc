// kill -9 of the coordinator at each point between storing and telling: what a client repeats gives
// the same job, no attempt is started twice under two epochs, a stored commit stays. Method: the
// program `swax coordinator` with failpoints; its peers live in this process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>

#include "proto/base/text.h"
#include "tests/coordinator/server_peers.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

using test::now_ms;
using test::request_id;
using test::submit_request;
using test::TestClient;
using test::TestWorker;

// `swax coordinator` as a child; its first line of output is the address.
class Program {
 public:
  Program(const std::string& state, const std::string& failpoints) {
    int out[2];
    SWAX_CHECK(::pipe2(out, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      if (!failpoints.empty()) ::setenv("SWAX_FAILPOINTS", failpoints.c_str(), 1);
      ::setenv("SWAX_LOG", "error", 1);
      const std::string program = std::string(SWAX_BINARY_DIR) + "/bin/swax";
      ::execl(program.c_str(), "swax", "coordinator", "--state", state.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(out[1]);
    std::string line;
    pollfd item{out[0], POLLIN, 0};
    while (line.find('\n') == std::string::npos && ::poll(&item, 1, 60000) > 0) {
      char bytes[256];
      const ssize_t got = ::read(out[0], bytes, sizeof bytes);
      if (got <= 0) break;
      line.append(bytes, static_cast<size_t>(got));
    }
    ::close(out[0]);
    const std::string prefix = "listening ";
    if (line.starts_with(prefix))
      address = line.substr(prefix.size(), line.find('\n') - prefix.size());
  }
  ~Program() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    wait_end();
  }
  // Asks until it has ended: a request that is late must reach it all the same. The newest answer.
  pb::Reply ask_until_its_end(TestClient& client, const pb::Request& request,
                              const std::string& id) {
    for (;;) {
      const pb::Reply reply = client.ask(request, id, 500);
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid != 0)
        return reply;
    }
  }
  // The signal that ended it, or minus its exit code.
  int wait_end() {
    if (pid_ <= 0) return end_;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    end_ = WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
    return end_;
  }
  void signal(int number) const { ::kill(pid_, number); }

  std::string address;

 private:
  pid_t pid_ = -1;
  int end_ = 0;
};

TEST(ServerCrash, AfterASubmitIsStoredItsAnswerIsTheSameJob) {
  const ScratchDir dir;
  {
    Program program(dir.path(), "coord.submit_journaled:1");
    ASSERT_FALSE(program.address.empty());
    TestClient client(program.address);
    EXPECT_EQ(program.ask_until_its_end(client, submit_request("job-a"), request_id(1)).code(), -1);
    EXPECT_EQ(program.wait_end(), SIGKILL);
  }
  Program program(dir.path(), "");
  ASSERT_FALSE(program.address.empty());
  TestClient client(program.address);
  const pb::Reply reply = client.ask(submit_request("job-a"), request_id(1));
  EXPECT_EQ(reply.code(), 0) << reply.error();
  EXPECT_TRUE(reply.existing());
  EXPECT_EQ(client.service().jobs(), 1U);
  EXPECT_EQ(client.service().coordinator_epoch(), 2U);
}

TEST(ServerCrash, BeforeAStartLeavesTheSameAttemptIsStarted) {
  const ScratchDir dir;
  {
    Program program(dir.path(), "coord.start_journaled:1");
    ASSERT_FALSE(program.address.empty());
    TestWorker worker(program.address, "node-a", 1);
    ASSERT_TRUE(worker.join());
    TestClient client(program.address);
    program.ask_until_its_end(client, submit_request("job-a"), request_id(1));
    EXPECT_EQ(program.wait_end(), SIGKILL);
    worker.wait([] { return false; }, 200);
    for (const pb::Envelope& envelope : worker.mail) EXPECT_FALSE(envelope.has_start_attempt());
  }
  Program program(dir.path(), "");
  ASSERT_FALSE(program.address.empty());
  TestWorker worker(program.address, "node-a", 1);
  ASSERT_TRUE(worker.join());
  pb::StartAttempt start;
  ASSERT_TRUE(worker.wait_start("job-a", &start));
  EXPECT_EQ(start.epoch(), 1U);
}

// COMMITTED may stand there before its record: the ranks' reports come again and make the same one.
void commit_through_a_crash(const std::string& failpoint) {
  SCOPED_TRACE(failpoint);
  const ScratchDir dir;
  const std::string store = dir / "store";
  const std::vector<pb::AttemptReport> reports = [&] {
    return std::vector{test::durable_report(store, "job-a", 1, 10, 0),
                       test::durable_report(store, "job-a", 1, 10, 1)};
  }();
  uint64_t next_report = 1;
  {
    Program program(dir.path(), failpoint + ":1");
    ASSERT_FALSE(program.address.empty());
    TestWorker worker(program.address, "node-a", 2);
    ASSERT_TRUE(worker.join());
    TestClient client(program.address);
    ASSERT_EQ(client.submit("job-a", 2).code(), 0);
    pb::StartAttempt start;
    ASSERT_TRUE(worker.wait_start("job-a", &start));
    worker.running = {test::running("job-a", 1)};
    worker.report(reports, 3000);
    next_report = worker.next_report;
    EXPECT_EQ(program.wait_end(), SIGKILL);
  }
  Program program(dir.path(), "");
  ASSERT_FALSE(program.address.empty());
  TestWorker worker(program.address, "node-a", 2);
  ASSERT_TRUE(worker.join({test::running("job-a", 1)}));
  TestClient client(program.address);
  worker.next_report = next_report;
  ASSERT_TRUE(worker.report(reports));
  EXPECT_TRUE(worker.wait([&] { return client.status("job-a").checkpoint_step() == 10; }));
  int commits = 0;
  for (const pb::EventRecord& event : client.events("job-a"))
    commits += event.kind() == "checkpoint_committed" ? 1 : 0;
  EXPECT_EQ(commits, 1);
  EXPECT_EQ(client.status("job-a").epoch(), 1U);
}

TEST(ServerCrash, AroundACommitLeavesOneCheckpoint) {
  commit_through_a_crash("checkpoint.committed_written");
  commit_through_a_crash("coord.commit_record_synced");
}

TEST(ServerCrash, EndsWithinFiveSecondsOfASignal) {
  const ScratchDir dir;
  Program program(dir.path(), "");
  ASSERT_FALSE(program.address.empty());
  TestClient client(program.address);
  ASSERT_EQ(client.submit("job-a").code(), 0);
  const int64_t begin = now_ms();
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait_end(), 0);
  EXPECT_LT(now_ms() - begin, 5000);
}

// Killed at any time: every acknowledged submit is there again. SWAX_TEST_FULL=1 runs the long
// form.
TEST(ServerCrash, LosesNoAcknowledgedSubmit) {
  const int rounds = ::getenv("SWAX_TEST_FULL") != nullptr ? 30 : 3;
  const ScratchDir dir;
  uint64_t acknowledged = 0;
  // Some more where the disk is so slow that no submit was answered.
  for (int round = 0; round < rounds || (acknowledged == 0 && round < 10 * rounds); ++round) {
    Program program(dir.path(), "");
    ASSERT_FALSE(program.address.empty());
    TestClient client(program.address);
    EXPECT_GE(client.service().jobs(), acknowledged);
    const int64_t end = now_ms() + 100 + 37 * (round % 7);
    while (now_ms() < end) {
      const std::string name = "job-" + to_text(acknowledged);
      if (client.ask(submit_request(name), request_id(1000 + acknowledged), 500).code() == 0)
        ++acknowledged;
    }
    program.signal(SIGKILL);
  }
  EXPECT_GT(acknowledged, 0U);
  Program program(dir.path(), "");
  TestClient client(program.address);
  for (uint64_t i = 0; i < acknowledged; ++i) {
    const pb::Reply reply = client.ask(submit_request("job-" + to_text(i)), request_id(1000 + i));
    EXPECT_TRUE(reply.code() == 0 && reply.existing()) << i;
  }
}

}  // namespace
}  // namespace swax
