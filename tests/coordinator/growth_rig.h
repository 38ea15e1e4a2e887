// A job that runs on fewer ranks than it asked for: what the tests of growth share.
#pragma once

#include <set>

#include "tests/coordinator/core_rig.h"

namespace swax::coord::test {

class GrowBack : public CoreRig {
 public:
  GrowBack() {
    config_.shrink_after_ms = 1'000;
    config_.grow_after_ms = 10'000;
  }
  static pb::JobSpec spec_of(const std::string& name, uint32_t ranks) {
    pb::JobSpec spec = small_spec(name, ranks);
    spec.mutable_training()->set_steps(1'000'000);
    spec.mutable_parallelism()->clear_allowed_ranks();
    for (uint32_t r = 1; r <= ranks; r *= 2) spec.mutable_parallelism()->add_allowed_ranks(r);
    return spec;
  }
  // Its lead reports a step, which took `ms`.
  void train(const std::string& name, uint64_t at, int64_t ms = 100) {
    pb::AttemptReport r = step(name, at);
    r.mutable_step()->set_step_ns(ms * 1'000'000);
    report(number_of(job(name).lead), {r});
  }
  static int number_of(const std::string& node) { return node.back() - '0'; }
  // a asks for `ranks`, and trains on the one slot of node-0.
  void run_on_one(uint32_t ranks = 2) {
    join(0, 1);
    ASSERT_EQ(submit(spec_of("a", ranks)).code(), 0);
    live(1, 2'000);
    ASSERT_EQ(job("a").ranks.size(), 1U);
    train("a", 10);
    ASSERT_EQ(job("a").state, JobState::kRunning);
  }
  // Ends everywhere as `result`, and what the workers say afterwards is heard.
  void end(const std::string& name, const std::string& result, int workers) {
    const std::vector<pb::RankPlacement> ranks = job(name).ranks;
    std::set<int> nodes;
    for (const pb::RankPlacement& rank : ranks) nodes.insert(number_of(rank.node()));
    for (const int number : nodes) report(number, {ended(name, result, step_of(name))});
    for (int number = 0; number < workers; ++number) beat(number);
    pass(200);
  }
  uint64_t step_of(const std::string& name) {
    const auto it = state_.vol.live.find(name);
    return it == state_.vol.live.end() ? 0 : it->second.step;
  }
  bool leaving(const std::string& name) { return state_.vol.live.at(name).grow_to > 0; }
  size_t growths(const std::string& name) {
    size_t count = 0;
    for (const pb::JobRecord& record : records_of(name))
      count += history_event(record).kind() == "growing" ? 1 : 0;
    return count;
  }
  std::string message(const std::string& name) {
    return job_status(state_, config_, job(name), {.now_ms = now_, .wall_ms = 0, .body = {}})
        .message();
  }
  // `ms` from now it has left for the room that it sees, and runs on two.
  void grow_after(int64_t ms) {
    live(2, ms);
    ASSERT_TRUE(leaving("a")) << ms;
    end("a", "stopped", 2);
    ASSERT_EQ(job("a").ranks.size(), 2U);
  }
  void train_on() { train("a", job("a").progress_step + 1); }
  // The grown attempt loses node-1, and the job goes on alone.
  void lose_node_1() {
    pb::Envelope goodbye;
    goodbye.set_node(node(1));
    goodbye.set_incarnation(1);
    goodbye.mutable_goodbye();
    tell(2, goodbye);
    report(0, {ended("a", "killed", step_of("a"))});
    beat(0);
    live(1, 3'000);
    ASSERT_EQ(job("a").ranks.size(), 1U);
  }
};

}  // namespace swax::coord::test
