// Goal: however ranks end, the gang ends soon, blames the right one and leaves no process. Method:
// the real mpirun with shells as ranks, which do what a rank might do.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "proto/base/text.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/attempt_folder.h"
#include "worker/agent/gang.h"
#include "worker/agent/mpirun.h"
#include "worker/agent/sweeper.h"

namespace swax {
namespace {

// Far below the 62 s that mpirun itself takes for a death among ranks that ignore SIGTERM; far
// above what a busy machine needs.
constexpr int64_t kLimitMs = 15'000;

class GangTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto found = find_program("mpirun");
    if (!found.ok()) GTEST_SKIP() << found.status().to_string();
    mpirun_ = *found;
    folder_ = dir_ / "a1";
    ASSERT_TRUE(make_attempt_folder(folder_).ok());
  }
  void TearDown() override {
    if (folder_.empty()) return;
    EXPECT_TRUE(marked_processes({.job = "gang", .state = dir_.path()}).empty());
    EXPECT_TRUE(remove_attempt_folder(folder_).ok());
  }

  // R is the rank's number in the script.
  void start(const std::string& script, int ranks = 2) {
    GangPlan plan;
    plan.ranks = ranks;
    plan.attempt_folder = folder_;
    const bool root = ::geteuid() == 0;
    plan.launch.arguments =
        mpirun_arguments({.mpirun = mpirun_,
                          .program = {"/bin/sh", "-c", "R=$OMPI_COMM_WORLD_RANK; " + script},
                          .ranks = ranks,
                          .session_folder = session_folder(folder_),
                          .root = root,
                          .share_cores = true});
    plan.launch.environment =
        rank_environment(current_environment(),
                         {"SWAX_JOB=gang", "SWAX_STATE=" + dir_.path(), "D=" + folder_}, root);
    plan.launch.output_path = dir_ / "mpirun.log";
    plan.launch.working_folder = dir_.path();
    auto started = Gang::start(plan, clock_);
    ASSERT_TRUE(started.ok()) << started.status().to_string();
    gang_ = std::move(started).value();
  }

  // Until the gang has ended, or `until` is true.
  GangEnd finish(const std::function<bool()>& until = nullptr) {
    const int64_t end_ms = clock_.monotonic_ms() + kLimitMs;
    while (!gang_->ended() && clock_.monotonic_ms() < end_ms && !(until && until()))
      gang_->wait(50, -1);
    if (until && !gang_->ended()) return {};
    EXPECT_TRUE(gang_->ended()) << read_file(dir_ / "mpirun.log", 1 << 20).value();
    return gang_->ended() ? gang_->end() : GangEnd{};
  }

  bool ready(int ranks) {
    for (int r = 0; r < ranks; ++r)
      if (!path_exists(dir_ / ("ready" + to_text(r)))) return false;
    return gang_->ranks_seen() == ranks;
  }

  const ScratchDir dir_;
  SystemClock clock_;
  std::string mpirun_, folder_;
  std::unique_ptr<Gang> gang_;
};

constexpr const char* kWaitForEver = "trap '' TERM; : > ready$R; while :; do sleep 0.1; done";

TEST_F(GangTest, IsDoneWhenEveryRankIs) {
  start("exit 0", 3);
  const GangEnd end = finish();
  EXPECT_EQ(end.kind, GangEnd::Kind::kDone) << end.reason;
}

TEST_F(GangTest, BlamesTheRankThatWasKilled) {
  start("[ $R = 1 ] && { sleep 0.5; kill -9 $$; }; " + std::string(kWaitForEver));
  const GangEnd end = finish();
  EXPECT_EQ(end.kind, GangEnd::Kind::kSignal);
  EXPECT_EQ(end.signal, SIGKILL);
  EXPECT_EQ(end.first_rank, 1);
  EXPECT_EQ(end.reason, "rank 1 was killed by SIGKILL");
}

TEST_F(GangTest, TakesTheReasonThatARankLeft) {
  start("[ $R = 1 ] && { sleep 0.5; echo 'shard 3 is damaged' > $D/failure-rank-1; exit 78; }; " +
        std::string(kWaitForEver));
  const GangEnd end = finish();
  EXPECT_EQ(end.kind, GangEnd::Kind::kBadInput);
  EXPECT_EQ(end.exit_code, 78);
  EXPECT_EQ(end.first_rank, 1);
  EXPECT_EQ(end.reason, "shard 3 is damaged");
}

TEST_F(GangTest, KnowsAnExitCodeOfItsOwn) {
  start("[ $R = 0 ] && { sleep 0.3; exit 9; }; " + std::string(kWaitForEver));
  const GangEnd end = finish();
  EXPECT_EQ(end.kind, GangEnd::Kind::kExit) << end.reason;
  EXPECT_EQ(end.exit_code, 9);
}

// The rank's end is seen or not, which is a race: either way the others must not wait for it.
TEST_F(GangTest, DoesNotWaitForARankThatNeverWasSeen) {
  start("[ $R = 0 ] && { echo 'too early' > $D/failure-rank-0; kill -9 $$; }; " +
            std::string(kWaitForEver),
        3);
  const GangEnd end = finish();
  EXPECT_EQ(end.first_rank, 0);
  EXPECT_EQ(end.reason, "too early");
}

TEST_F(GangTest, EndsWhenEveryRankFails) {
  start("sleep 0.3; exit 75", 3);
  const GangEnd end = finish();
  EXPECT_EQ(end.kind, GangEnd::Kind::kExit) << end.reason;
  EXPECT_EQ(end.exit_code, 75);
}

TEST_F(GangTest, EndsWhenNobodyWasSeen) {
  start("echo 'none of us' > $D/failure-rank-$R; exit 75", 3);
  EXPECT_EQ(finish().reason, "none of us");
}

TEST_F(GangTest, SaysThatAllAreNotFinite) {
  start("sleep 0.3; exit 93");
  const GangEnd end = finish();
  EXPECT_EQ(end.kind, GangEnd::Kind::kNotFinite) << end.reason;
}

TEST_F(GangTest, LeavesOnRequest) {
  start("trap 'exit 99' USR1; trap '' TERM; : > ready$R; while :; do sleep 0.05; done", 3);
  finish([this] { return ready(3); });
  gang_->ask_to_leave();
  const GangEnd end = finish();
  EXPECT_EQ(end.kind, GangEnd::Kind::kLeft) << end.reason;
}

TEST_F(GangTest, EndsWithItsMpirun) {
  start(kWaitForEver);
  finish([this] { return ready(2); });
  for (const ProcessStat& p : marked_processes({.job = "gang", .state = dir_.path()})) {
    if (p.name != "mpirun") continue;
    const Fd process = open_process(p.id);
    ASSERT_TRUE(signal_process(process, SIGKILL));
  }
  const GangEnd end = finish();
  EXPECT_EQ(end.kind, GangEnd::Kind::kSignal);
  EXPECT_EQ(end.reason, "mpirun was killed by SIGKILL");
}

TEST_F(GangTest, IsKilledWithEverythingItStarted) {
  start("sleep 1000 & " + std::string(kWaitForEver));
  finish([this] { return ready(2); });
  gang_->kill("enough");
  ASSERT_TRUE(gang_->ended());
  EXPECT_EQ(gang_->end().kind, GangEnd::Kind::kStopped);
  EXPECT_EQ(gang_->end().reason, "enough");
}

TEST_F(GangTest, WorksWhereTheSessionLiesBelowTmp) {
  ASSERT_TRUE(remove_attempt_folder(folder_).ok());
  folder_ = dir_ / (std::string(150, 'q') + "/a1");
  ASSERT_TRUE(make_attempt_folder(folder_).ok());
  start("exit 0");
  EXPECT_EQ(finish().kind, GangEnd::Kind::kDone);
}

}  // namespace
}  // namespace swax
