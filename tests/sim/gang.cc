#include "tests/sim/gang.h"

#include <algorithm>

#include "jobs/schedule.h"

namespace swax::sim {
namespace {

constexpr int kExitBadInput = 78, kExitNotFinite = 93, kExitLeft = 99, kExitOdd = 205;
constexpr int kSigKill = 9, kSigTerm = 15;

}  // namespace

Gang::Gang(Parts parts, const pb::StartAttempt& start) : p_(parts), start_(start) {
  for (const pb::RankPlace& place : start.ranks())
    ranks_[place.rank()].agent = p_.agents.at(place.node());
}

void Gang::later(int64_t delay_ms, std::function<void()> run) {
  p_.world.after(delay_ms, [self = shared_from_this(), run = std::move(run)] {
    if (!self->over_) run();
  });
}

void Gang::begin() {
  launcher_ = true;
  AgentHost* lead = p_.agents.at(start_.lead());
  launcher_process_ = lead->process();
  later(p_.world.between(300, 1500), [this] { start_ranks(start_.lead()); });
  std::set<std::string> others;
  for (const auto& [number, rank] : ranks_)
    if (rank.agent->node() != start_.lead()) others.insert(rank.agent->node());
  uint64_t proxy = 0;
  for (const std::string& node : others) {
    agent::ProxyAsks asks{.job = start_.job(),
                          .epoch = start_.epoch(),
                          .target = node,
                          .command = "/usr/bin/orted -mca ess env",
                          .proxy = ++proxy};
    later(200, [lead, asks] { lead->handle(asks); });
  }
}

void Gang::start_ranks(const std::string& node) {
  if (over_ || dead_nodes_.contains(node)) return;
  for (auto& [number, rank] : ranks_) {
    if (rank.agent->node() != node || rank.running) continue;
    rank.running = true;
    rank.process = rank.agent->process();
    ++running_;
    p_.oracle.on_rank_started(node, start_.job(), start_.epoch(), number);
    pb::RankMessage hello;
    hello.mutable_hello()->set_rank(number);
    say(number, std::move(hello));
  }
  if (!whole()) return;
  say_phase("load");
  later(p_.world.between(300, 2500), [this] { load(); });
}

void Gang::say(uint32_t number, pb::RankMessage message) {
  Rank& rank = ranks_.at(number);
  if (!rank.agent->alive() || rank.agent->process() != rank.process) return;
  rank.agent->handle(agent::RankSaid{
      .job = start_.job(), .epoch = start_.epoch(), .rank = number, .message = std::move(message)});
}

void Gang::say_phase(const char* phase) {
  for (const auto& [number, rank] : ranks_) {
    pb::RankMessage m;
    m.set_phase(phase);
    say(number, std::move(m));
  }
}

void Gang::close(uint32_t number, int exit_code, int signal) {
  Rank& rank = ranks_.at(number);
  if (!rank.running) return;
  rank.running = false;
  --running_;
  p_.oracle.on_rank_ended(rank.agent->node(), start_.job(), start_.epoch(), number);
  if (rank.agent->alive() && rank.agent->process() == rank.process)
    rank.agent->handle(agent::RankClosed{.job = start_.job(),
                                         .epoch = start_.epoch(),
                                         .rank = number,
                                         .exit_code = exit_code,
                                         .signal = signal});
}

// mpirun notices that something is missing and takes the rest down.
void Gang::collapse(int64_t after_ms) {
  later(after_ms, [this] {
    for (auto& [number, rank] : ranks_) close(number, -1, kSigTerm);
    launcher_exits(1);
    daemons_exit(1);
    over_ = true;
  });
}

void Gang::launcher_exits(int code) {
  if (!launcher_) return;
  launcher_ = false;
  AgentHost* lead = p_.agents.at(start_.lead());
  if (lead->alive() && lead->process() == launcher_process_)
    lead->handle(agent::LauncherExited{.job = start_.job(),
                                       .epoch = start_.epoch(),
                                       .exit_code = code,
                                       .signal = 0,
                                       .log_tail = "mpirun"});
}

void Gang::daemons_exit(int code) {
  for (const auto& [node, proxy] : std::map<std::string, uint64_t>(daemons_)) {
    if (dead_nodes_.contains(node)) continue;
    p_.agents.at(node)->handle(agent::RemoteEnded{.job = start_.job(),
                                                  .epoch = start_.epoch(),
                                                  .lead = start_.lead(),
                                                  .proxy = proxy,
                                                  .exit_code = code,
                                                  .reason = {}});
  }
  daemons_.clear();
}

void Gang::node_killed(const std::string& node) {
  const bool mine =
      node == start_.lead() || std::any_of(ranks_.begin(), ranks_.end(), [&node](const auto& rank) {
        return rank.second.agent->node() == node;
      });
  if (over_ || !mine || !dead_nodes_.insert(node).second) return;
  const auto self = shared_from_this();
  if (node == start_.lead()) launcher_ = false;
  for (auto& [number, rank] : ranks_)
    if (rank.agent->node() == node) close(number, -1, kSigKill);
  collapse(p_.world.between(300, 1800));
}

// True: a rank dies here.
bool Gang::crashes(Fault point) {
  if (over_ || !p_.world.faults_on() || p_.crash_at.erase(point) == 0) return false;
  p_.world.fired(point);
  return true;
}

void Gang::ask_stop() {
  stop_ = true;
  if (whole() && !leaving_ && crashes(Fault::kRankCrashReceive))
    later(1, [this] { crash_rank(static_cast<uint32_t>(p_.world.below(ranks_.size()))); });
}

void Gang::refuse(uint32_t rank) { exit_rank(rank, 75, "the agent refused this attempt"); }

void Gang::crash_rank(uint32_t rank) {
  const auto self = shared_from_this();
  close(rank, -1, kSigKill);
  collapse(p_.world.between(900, 2000));
}

void Gang::exit_rank(uint32_t rank, int code, const std::string& reason) {
  const auto self = shared_from_this();
  pb::RankMessage m;
  m.set_failure(reason);
  say(rank, std::move(m));
  close(rank, code, 0);
  collapse(p_.world.between(900, 2000));
}

void Gang::fail_all(int code, const std::string& reason) {
  const auto self = shared_from_this();
  leaving_ = true;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (over_) return;
    pb::RankMessage m;
    m.set_failure(reason);
    say(rank, std::move(m));
    close(rank, code, 0);
  }
  collapse(500);
}

void Gang::load() {
  if (!whole()) return;
  if (p_.job.kind == JobKind::kBadData) return fail_all(kExitBadInput, "data set is damaged");
  if (p_.job.kind == JobKind::kCrashLoop) return exit_rank(0, 1, "failed at start");
  const auto loaded = p_.store.newest(start_.job());
  step_ = start_step_ = last_saved_ = loaded ? loaded->step : 0;
  bits_ = loaded ? loaded->bits : p_.job.bits.front();
  pb::RankMessage m;
  m.mutable_report()->set_start_step(step_);
  m.mutable_report()->set_world_size(static_cast<uint32_t>(ranks_.size()));
  say(0, std::move(m));
  say_phase("warmup");
  next_step();
}

void Gang::next_step() {
  if (step_ >= p_.job.steps()) return finish(true);
  slow_ms_ = p_.job.step_ms + p_.world.between(0, p_.job.step_ms / 4);
  later(slow_ms_, [this] { finish_step(); });
}

void Gang::tell_step() {
  for (const auto& [number, rank] : ranks_) {
    pb::RankMessage m;
    pb::StepRecord& step = *m.mutable_step();
    step.set_step(step_);
    step.set_epoch(start_.epoch());
    step.set_window(
        static_cast<uint32_t>(attention_window(start_.spec(), static_cast<int64_t>(step_) - 1)));
    step.set_step_ns(slow_ms_ * 1'000'000);
    if (number == 0) step.set_loss_bits(bits_);
    say(number, std::move(m));
  }
}

void Gang::finish_step() {
  if (!whole() || hung_) return;
  const auto self = shared_from_this();
  ++step_;
  bits_ = mix_bits(bits_ ^ step_);
  if (p_.job.kind == JobKind::kNumeric && step_ >= p_.job.fail_step)
    return fail_all(kExitNotFinite, "loss is not finite");
  tell_step();
  if (step_ == start_step_ + 1) say_phase("train");
  settle_save();
  if (!whole()) return;
  if (stop_ && step_ < p_.job.steps()) return finish(false);
  if (step_ % start_.spec().checkpoint().interval() == 0 && step_ < p_.job.steps() && !saving_)
    begin_save();
  next_step();
}

void Gang::begin_save() {
  saving_ = true;
  save_failed_ = false;
  save_step_ = step_;
  save_bits_ = bits_;
  saved_ranks_ = 0;
  for (const auto& [number, rank] : ranks_) {
    later(p_.world.between(100, 3000), [this, number = number, step = save_step_] {
      if (saving_ && save_step_ == step && ranks_.at(number).running) save_shard(number);
    });
  }
}

void Gang::save_shard(uint32_t rank) {
  const coord::SaveKey key{save_step_, start_.epoch()};
  if (crashes(Fault::kRankCrashJournal)) {  // nothing is there, or not what should be
    if (p_.world.chance(0.5)) p_.store.write_shard(start_.job(), key, rank, save_bits_ ^ 1);
    return crash_rank(rank);
  }
  ++saved_ranks_;
  if (p_.world.faults_on() && p_.world.chance(p_.swarm.save_failed)) {
    p_.world.fired(Fault::kSaveFailed);
    save_failed_ = true;
    return;
  }
  p_.store.write_shard(start_.job(), key, rank, save_bits_);
}

// At the end of a step all ranks agree whether the save is over.
void Gang::settle_save() {
  if (!saving_ || saved_ranks_ < ranks_.size()) return;
  saving_ = false;
  if (!save_failed_) {
    last_saved_ = save_step_;
    return tell_durable();
  }
  pb::RankMessage m;
  m.mutable_event()->set_kind("checkpoint_failed");
  m.mutable_event()->set_step(save_step_);
  say(0, std::move(m));
}

void Gang::tell_durable() {
  const bool dies = crashes(Fault::kRankCrashSend);
  const auto dying = static_cast<uint32_t>(dies ? p_.world.below(ranks_.size()) : ranks_.size());
  const bool silent = dies && p_.world.chance(0.5);
  for (const auto& [number, rank] : ranks_) {
    if (silent && number == dying) continue;
    pb::RankMessage m;
    pb::RankDurable& durable = *m.mutable_durable();
    durable.set_step(save_step_);
    durable.set_world_size(static_cast<uint32_t>(ranks_.size()));
    durable.mutable_shard()->set_rank(number);
    say(number, std::move(m));
  }
  if (dies) crash_rank(dying);
}

void Gang::finish(bool done) {
  say_phase(done ? "validate" : "save");
  later(p_.world.between(200, 2000), [this, done] { final_save(done); });
}

// Waits for the save under way, then saves the last step if that is not saved yet.
void Gang::final_save(bool done) {
  if (!whole() || hung_) return;
  const auto self = shared_from_this();
  if (saving_) {
    settle_save();
    later(200, [this, done] { final_save(done); });
    return;
  }
  if (last_saved_ != step_) {
    say_phase("save");
    begin_save();
    later(200, [this, done] { final_save(done); });
    return;
  }
  leave(done);
}

void Gang::leave(bool done) {
  leaving_ = true;
  pb::RankMessage m;
  m.mutable_done()->set_outcome(done ? "done" : "stopped");
  m.mutable_done()->set_step(step_);
  m.mutable_done()->set_digest(digest_text(bits_));
  say(0, std::move(m));
  say_phase("leaving");
  const int code = done ? 0 : kExitLeft;
  const int seen = p_.world.chance(0.3) ? -1 : code;  // mpirun may reap them first
  const int launcher = p_.world.chance(0.2) ? kExitOdd : code;
  for (const auto& [number, rank] : ranks_)
    later(p_.world.between(5, 400), [this, number = number, seen] { close(number, seen, 0); });
  later(700, [this, launcher] {
    daemons_exit(0);
    launcher_exits(launcher);
    over_ = true;
  });
}

}  // namespace swax::sim
