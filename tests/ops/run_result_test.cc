// Goal: the last object of a run has every key, null for what is not known, and STOPPED for a run
// that goes on; the progress line shows what is known. Method: records made by hand.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "ops/cli/run_progress.h"
#include "ops/cli/run_result.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

TEST(RunResult, HasNullForWhatIsNotKnown) {
  const ScratchDir dir;
  RunInfo run;
  run.spec.mutable_job()->set_name("n");
  run.spec.mutable_training()->set_steps(9);
  run.state = "STOPPED";
  run.validation_bpb_bits = std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(run_summary_json(StateDir("/s"), run).text(false),
            R"({"schema_version":1,"job":"n","name":"n","state":"STOPPED","reason":null,"step":0,)"
            R"("total_steps":9,"loss":null,"validation_bpb":null,"tokens_per_s":null,)"
            R"("digest":null,"attempt":0,"restarts":0,"checkpoint":null,"state_dir":"/s"})");
  EXPECT_EQ(exit_code_of_run(run), -1);
}

TEST(RunResult, HasTheShortestNumbersThatReadBack) {
  RunInfo run;
  run.spec.mutable_job()->set_name("n");
  run.state = "FAILED";
  run.reason = "rank 1: \"x\"";
  run.epoch = 3;
  run.loss_bits = std::bit_cast<uint64_t>(0.1);
  const std::string text = run_summary_json(StateDir("/s"), run).text(false);
  EXPECT_NE(text.find(R"("loss":0.1,)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("reason":"rank 1: \"x\"")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("attempt":3,"restarts":2)"), std::string::npos) << text;
  EXPECT_EQ(exit_code_of_run(run), 10);
}

// No text has 0 bits per byte: zero bits stand for "nothing was scored".
TEST(RunResult, SaysThatNothingWasValidated) {
  const ScratchDir dir;
  RunInfo run;
  run.spec.mutable_job()->set_name("n");
  run.state = "SUCCEEDED";
  const StateDir state(dir.path());
  EXPECT_NE(run_summary_text(state, run).find("\nvalidation    none"), std::string::npos);
  run.validation_bpb_bits = std::bit_cast<uint64_t>(2.5);
  EXPECT_NE(run_summary_text(state, run).find("\nvalidation    2.5000 bits per byte\n"),
            std::string::npos);
}

TEST(RunResult, GivesTheJobsExitCode) {
  RunInfo run;
  run.state = "SUCCEEDED";
  EXPECT_EQ(exit_code_of_run(run), 0);
  run.state = "CANCELLED";
  EXPECT_EQ(exit_code_of_run(run), 11);
}

class FixedClock final : public Clock {
 public:
  int64_t monotonic_ms() override { return 1000; }
  int64_t monotonic_ns() override { return 1'000'000'000; }
  int64_t wall_ms() override { return 500'000; }
};

TEST(RunProgress, ShowsWhatIsKnown) {
  FixedClock clock;
  const RunProgress view(false, 40, clock);
  AttemptProgress progress;
  progress.step.emplace();
  progress.step->set_step(10);
  progress.step->set_window(16);
  progress.step->set_loss_bits(std::bit_cast<uint64_t>(2.5));
  EXPECT_EQ(view.line(progress), "step 10/40  loss 2.5000  window 16");
  progress.step_ns = 2e8;
  progress.tokens_per_s = 12345.6;
  progress.committed_step = 8;
  progress.committed_wall_ms = 496'000;
  EXPECT_EQ(view.line(progress),
            "step 10/40  loss 2.5000  window 16  12,345 tok/s  left 6.0s  ckpt 8, 4.0s ago");
}

}  // namespace
}  // namespace swax
