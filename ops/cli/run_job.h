// One typing of `swax run`, from its spec to an exit code: hands the job to the coordinator inside
// this process (or takes up the one that stands in its records), follows it, leaves when asked to.
// Threads: one, the one that blocked the signals.
#pragma once

#include <cstdint>
#include <string>

#include "ops/cli/client_session.h"
#include "ops/cli/job_view.h"
#include "ops/cli/run.h"
#include "ops/cli/run_service.h"
#include "ops/cli/run_signals.h"
#include "ops/cli/state_dir.h"
#include "proto/control.pb.h"

namespace swax {

class RunJob {
 public:
  // spec: with the digests of its data sets. All but args live longer than this.
  RunJob(const RunArgs& args, const StateDir& state, pb::JobSpec spec, RunService& service,
         ClientSession& session, RunSignals& signals);
  // To the job's end or a signal. The exit code of the process; results are printed.
  int go();

 private:
  // Each an exit code, or -1: go on.
  int find_job();
  int submit();
  int take_up(const pb::JobStatus& job);
  int start();

  void watch();
  void hear_signals();
  void look();  // at what the coordinator tells
  void end_worker();
  void wait_for_retention();
  int end();

  const RunArgs args_;
  const StateDir& state_;
  const pb::JobSpec spec_;
  RunService& service_;
  ClientSession& session_;
  RunSignals& signals_;
  JobView view_;
  uint32_t slots_;     // of the worker; also for an attempt that was placed before with more ranks
  int job_code_ = -1;  // of a job that has ended
  int stop_signal_ = 0;
};

}  // namespace swax
