// The attempts of a run, one after the other, until the job ends or somebody stops it.
// Threads: all calls from one thread; the ranks die with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ops/cli/run_follow.h"
#include "ops/cli/run_history.h"
#include "ops/cli/run_journal.h"
#include "ops/cli/run_prepare.h"
#include "ops/cli/run_progress.h"
#include "ops/cli/run_signals.h"
#include "ops/cli/state_dir.h"
#include "proto/base/clock.h"
#include "worker/agent/gang.h"

namespace swax {

struct RunSetup {
  StateDir state;
  RunData data;
  std::string mpirun;           // path
  std::string train_program;    // path of swax-train
  std::string build_id;         // the ranks must have the same; empty: not compared
  int64_t hang_ms = 1'200'000;  // longest time without a report; the final validation may take long
};

class RunLoop {
 public:
  RunLoop(RunSetup setup, RunJournal& journal, RunSignals& signals, RunProgress& view,
          Clock& clock);
  // 0 and 10: the job ended, and so stands in the journal. 128+n: stopped by signal n. Fails when
  // the run itself cannot go on (disk full, no mpirun); the job has not ended then.
  Result<int> go();

 private:
  struct Ended {
    GangEnd end;
    AttemptProgress progress;
    bool hang = false;
  };
  Status take_over();  // what the attempt of a run that died left
  Status begin_attempt();
  Result<Ended> attempt();
  Result<std::unique_ptr<Gang>> launch();
  void watch(Gang* gang, ReportFollower* follower, bool* hang);
  void hear_signals(Gang* gang);
  void pause(int64_t ms);
  Status record_end(const Ended& ended);
  // An exit code, or -1: another attempt follows.
  Result<int> judge(const Ended& ended);
  Result<int> succeed(const pb::DoneReport& done);
  Result<int> fail_job(const std::string& reason);
  Result<int> stopped();
  ReportFollower follow();

  RunSetup setup_;
  RunJournal& journal_;
  RunSignals& signals_;
  RunProgress& view_;
  Clock& clock_;
  StepBits bits_;
  int stop_signal_ = 0;
  int64_t stop_ms_ = 0;   // when it came
  int64_t asked_ms_ = 0;  // when the ranks were asked last
  std::string refused_;   // why the run cannot go on
};

}  // namespace swax
