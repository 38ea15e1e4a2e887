// Goal: a nearly full disk keeps what is new out and lets everything else go on. Method: a server
// on a small tmpfs, of which a file takes all but a few MiB.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "proto/base/files.h"
#include "tests/coordinator/server_peers.h"
#include "tests/proto/scratch_dir.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

using test::TestClient;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLeft = 4 * 1024 * 1024;  // below the 8 MiB of the coordinator

// As `swax run` says it when it is typed again.
pb::Request resume_request(const std::string& name) {
  pb::Request request;
  request.mutable_resume()->set_job(name);
  *request.mutable_resume()->mutable_spec() = test::job_spec(name);
  return request;
}

TEST(ServerSpace, ANearlyFullDiskRefusesOnlyWhatIsNew) {
  const ScratchDir dir;
  const test::TinyDisk disk(dir.path(), "size=48m");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a tmpfs";
  const auto server = test::open_server(dir.path());
  ASSERT_NE(server, nullptr);
  TestClient client(server->address());
  ASSERT_EQ(client.submit("job-a").code(), 0);
  const int64_t free = free_bytes(dir.path()).value();
  ASSERT_GT(free, kLeft);
  test::set_bytes(dir / "filler", std::string(static_cast<size_t>(free - kLeft), 'x'));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it looks every 100 ms

  const pb::Reply refused = client.submit("job-b");
  EXPECT_EQ(refused.code(), 1);
  EXPECT_THAT(refused.error(), HasSubstr("nothing new is taken"));
  EXPECT_THAT(refused.error(), Not(HasSubstr("running jobs"))) << "none runs";
  const pb::Reply again = client.ask(resume_request("job-a"));
  EXPECT_EQ(again.code(), 0) << again.error();
  pb::Request cancel;
  cancel.mutable_cancel()->set_job("job-a");
  EXPECT_EQ(client.ask(cancel).code(), 0);
  EXPECT_EQ(client.ask(resume_request("job-a")).code(), 1) << "it had ended: that is new work";
  pb::Request unknown = resume_request("job-a");
  unknown.mutable_resume()->set_job("nobody");
  EXPECT_EQ(client.ask(unknown).code(), 3);

  std::filesystem::remove(dir / "filler");
  const int64_t end = test::now_ms() + 60000;
  while (client.submit("job-b").code() != 0) ASSERT_LT(test::now_ms(), end);
}

}  // namespace
}  // namespace swax
