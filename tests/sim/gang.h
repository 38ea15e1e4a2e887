// One attempt's ranks. Owned by the cluster; its timers keep it until they have run out.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "tests/sim/agent_host.h"
#include "tests/sim/store.h"

namespace swax::sim {

class Gang : public std::enable_shared_from_this<Gang> {
 public:
  struct Parts {
    World& world;
    const Swarm& swarm;
    const SimJob& job;
    Store& store;
    Oracle& oracle;
    const std::map<std::string, AgentHost*>& agents;
    std::set<Fault>& crash_at;  // points at which the next rank that comes there dies
  };
  Gang(Parts parts, const pb::StartAttempt& start);

  void begin();  // the launcher runs on the lead
  void daemon_started(const std::string& node, uint64_t proxy) { daemons_[node] = proxy; }
  void start_ranks(const std::string& node);
  void node_killed(const std::string& node);  // its processes are gone; the others notice
  void ask_stop();
  void refuse(uint32_t rank);
  bool training() const { return running_ == ranks_.size() && !leaving_ && step_ > start_step_; }
  void crash_rank(uint32_t rank);
  void exit_rank(uint32_t rank, int code, const std::string& reason);
  void hang() { hung_ = true; }
  size_t size() const { return ranks_.size(); }
  bool over() const { return over_; }

 private:
  struct Rank {
    AgentHost* agent = nullptr;
    uint64_t process = 0;  // of the agent that it belongs to
    bool running = false;
  };
  void later(int64_t delay_ms, std::function<void()> run);
  bool whole() const { return running_ == ranks_.size() && !over_; }
  void say(uint32_t rank, pb::RankMessage message);
  void say_phase(const char* phase);
  void close(uint32_t rank, int exit_code, int signal);
  void collapse(int64_t after_ms);
  void launcher_exits(int code);
  void daemons_exit(int code);
  void load();
  void next_step();
  void finish_step();
  void tell_step();
  void fail_all(int code, const std::string& reason);
  bool crashes(Fault point);
  void begin_save();
  void save_shard(uint32_t rank);
  void settle_save();
  void tell_durable();
  void finish(bool done);
  void final_save(bool done);
  void leave(bool done);

  Parts p_;
  const pb::StartAttempt start_;
  std::map<uint32_t, Rank> ranks_;
  std::set<std::string> dead_nodes_;
  std::map<std::string, uint64_t> daemons_;  // by member: the proxy that asked for it
  size_t running_ = 0;
  bool launcher_ = false, over_ = false, stop_ = false, hung_ = false, leaving_ = false;
  uint64_t launcher_process_ = 0;
  uint64_t step_ = 0, start_step_ = 0, bits_ = 0;
  int64_t slow_ms_ = 0;
  // The save under way.
  bool saving_ = false, save_failed_ = false;
  uint64_t save_step_ = 0, save_bits_ = 0, last_saved_ = 0;
  size_t saved_ranks_ = 0;
};

}  // namespace swax::sim
