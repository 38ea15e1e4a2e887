#include "tests/sim/coordinator_host.h"

#include "proto/base/text.h"

namespace swax::sim {
namespace {

constexpr int64_t kCoordinatorTickMs = 500;

}  // namespace

CoordinatorHost::CoordinatorHost(World& world, const Swarm& swarm, Network& network, Store& store,
                                 Oracle& oracle)
    : world_(world),
      swarm_(swarm),
      network_(network),
      store_(store),
      oracle_(oracle),
      disk_(world) {
  config_.cluster_id = "cluster";
  config_.store = "/store";
  config_.store_nonce = kNonce;
  config_.store_nonce_file = "nonce";
  config_.shrink_after_ms = kShrinkAfterMs;
  config_.grow_after_ms = kGrowAfterMs;
}

void CoordinatorHost::start() {
  ++process_;
  alive_ = true;
  crash_at_.reset();
  network_.reconnect_all();
  replay();
  handle(coord::Started{});
  tick();
}

void CoordinatorHost::replay() {
  state_ = std::make_unique<coord::State>();
  coord::Durable& durable = state_->durable;
  const std::vector<Batch> batches = disk_.read();
  for (size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches[i];
    durable.coordinator_epoch = std::max(durable.coordinator_epoch, batch.coordinator_epoch);
    for (const pb::JobRecord& record : batch.records)
      if (const auto problem = coord::apply_record(durable, record))
        coord::hold_job(durable, record.job(), *problem);
    for (const auto& answer : batch.answers) coord::remember_answer(durable, answer);
    for (const auto& taken : batch.taken) coord::remember_taken(durable, taken);
    // Written, not synced, and yet not lost.
    if (i >= batches_seen_) oracle_.on_durable(batch);
  }
  batches_seen_ = batches.size();
  oracle_.on_replay(durable);
  Batch begin;
  begin.coordinator_epoch = ++durable.coordinator_epoch;
  disk_.write(begin);
  disk_.sync();
  ++batches_seen_;
}

void CoordinatorHost::later(int64_t delay_ms, std::function<void()> run) {
  world_.after(delay_ms, [this, process = process_, run = std::move(run)] {
    if (alive_ && process_ == process) run();
  });
}

void CoordinatorHost::tick() {
  handle(coord::Tick{});
  if (alive_) later(kCoordinatorTickMs, [this] { tick(); });
}

void CoordinatorHost::deliver(uint64_t peer, const pb::Envelope& envelope) {
  if (!alive_) return;
  coord::Message message;
  message.peer = peer;
  message.envelope = envelope;
  if (envelope.has_request())
    message.body_hash = xxh3_128(envelope.request().SerializeAsString()).hex();
  handle(std::move(message));
}

void CoordinatorHost::pause(int64_t for_ms) {
  if (!alive_ || world_.now() < paused_until_) return;
  paused_until_ = world_.now() + for_ms;
  later(for_ms, [this] {
    // Ticks are the first to run: they must not take the silence for the workers'.
    process(coord::Tick{});
    while (alive_ && !inbox_.empty()) {
      coord::EventBody body = std::move(inbox_.front());
      inbox_.pop_front();
      process(std::move(body));
    }
  });
}

void CoordinatorHost::handle(coord::EventBody body) {
  if (!alive_) return;
  if (world_.now() < paused_until_) {
    if (!std::holds_alternative<coord::Tick>(body)) inbox_.push_back(std::move(body));
    return;
  }
  process(std::move(body));
}

bool CoordinatorHost::crashes(Fault point, bool matters) {
  if (!matters || crash_at_ != point || !world_.faults_on()) return false;
  world_.fired(point);
  return true;
}

void CoordinatorHost::process(coord::EventBody body) {
  if (crashes(Fault::kCrashReceive, std::holds_alternative<coord::Message>(body))) return crash();
  plant_before(body);
  const coord::Event event{
      .now_ms = world_.now(), .wall_ms = world_.wall(), .body = std::move(body)};
  coord::Output out = coord::step(*state_, config_, event);
  const bool writes = !out.records.empty();
  if (world_.canary() == Canary::kSendBeforeSync) execute(out, out.commands.size());
  if (writes || !out.answers.empty() || !out.taken.empty()) {
    journal(out);
    if (crashes(Fault::kCrashJournal, writes)) return crash();
    disk_.sync();
    ++batches_seen_;
    Batch synced{.records = out.records, .answers = {}, .taken = {}};
    oracle_.on_durable(synced);
  }
  if (world_.canary() == Canary::kSendBeforeSync) return;
  if (crashes(Fault::kCrashSend, writes)) {
    execute(out, world_.below(out.commands.size() + 1));
    return crash();
  }
  execute(out, out.commands.size());
}

void CoordinatorHost::journal(const coord::Output& out) {
  disk_.write({.records = out.records, .answers = out.answers, .taken = out.taken});
}

void CoordinatorHost::crash() {
  alive_ = false;
  inbox_.clear();
  paused_until_ = 0;
  disk_.crash();
  if (world_.tracing()) world_.trace("coordinator dies");
  world_.after(world_.between(200, world_.chance(0.2) ? 90'000 : 8'000), [this] { start(); });
}

void CoordinatorHost::execute(coord::Output& out, size_t limit) {
  for (size_t i = 0; i < limit; ++i) run(out.commands[i]);
}

void CoordinatorHost::run(coord::Command& command) {
  if (auto* send = std::get_if<coord::Send>(&command)) return run_send(*send);
  if (const auto* write = std::get_if<coord::WriteCommitted>(&command)) return run_commit(*write);
  if (const auto* retire = std::get_if<coord::Retire>(&command)) return run_retire(*retire);
  if (const auto* find = std::get_if<coord::FindCommitted>(&command)) return run_find(*find);
  if (const auto* store = std::get_if<coord::StoreStep>(&command))
    oracle_.on_step(store->job, store->record);
}

void CoordinatorHost::run_send(coord::Send& send) {
  if (world_.canary() == Canary::kCommandNotRepeated && send.envelope.has_start_attempt()) {
    const pb::StartAttempt& start = send.envelope.start_attempt();
    const std::string key =
        start.job() + "/" + to_text(uint64_t{start.epoch()}) + "/" + send.envelope.node();
    if (!commands_sent_.insert(key).second) return;
  }
  network_.send_to_peer(send.peer, std::move(send.envelope));
}

void CoordinatorHost::run_commit(const coord::WriteCommitted& write) {
  coord::CommittedWritten written{.job = write.job,
                                  .step = write.step,
                                  .epoch = write.epoch,
                                  .ok = true,
                                  .error = "",
                                  .digest = "",
                                  .bytes = 1,
                                  .committed_ms = world_.wall(),
                                  .world_size = static_cast<uint32_t>(write.ranks.size())};
  if (world_.faults_on() && world_.chance(swarm_.commit_failed)) {
    world_.fired(Fault::kCommitFailed);
    written.ok = false;
    written.error = "no space";
  }
  const int keep =
      static_cast<int>(state_->durable.jobs.at(write.job).spec.checkpoint().keep_latest_k());
  if (world_.canary() == Canary::kRetentionBeforeCommit) store_.retire(write.job, keep - 1, keep);
  later(world_.between(2, 200), [this, written] {
    if (written.ok) store_.commit(written.job, {written.step, written.epoch}, written.world_size);
    handle(written);
  });
}

// As the shell does it: what the records know and is not there any more has been removed, also by a
// process whose record of that was lost.
void CoordinatorHost::run_retire(const coord::Retire& retire) {
  std::vector<coord::SaveKey> known;
  for (const auto& [key, checkpoint] : state_->durable.jobs.at(retire.job).checkpoints)
    if (checkpoint.state == "COMMITTED") known.push_back(key);
  later(world_.between(2, 200), [this, retire, known] {
    store_.retire(retire.job, retire.keep, retire.keep);
    const auto there = store_.committed(retire.job);
    coord::Retired retired{.job = retire.job, .removed = {}};
    for (const coord::SaveKey& key : known)
      if (!there.contains(key)) retired.removed.push_back(key);
    handle(std::move(retired));
  });
}

void CoordinatorHost::run_find(const coord::FindCommitted& find) {
  later(world_.between(2, 200), [this, find] {
    for (const auto& [key, ranks] : store_.committed(find.job)) {
      coord::CommittedWritten found;
      found.job = find.job;
      found.step = key.first;
      found.epoch = key.second;
      found.bytes = 1;
      found.world_size = ranks;
      found.committed_ms = world_.wall();
      found.found = true;
      handle(found);
    }
  });
}

void CoordinatorHost::plant_before(const coord::EventBody& body) {
  const auto* message = std::get_if<coord::Message>(&body);
  if (message == nullptr) return;
  if (world_.canary() == Canary::kBudgetResetByHello && message->envelope.has_hello())
    for (auto& [name, job] : state_->durable.jobs) job.restarts_since_commit = job.no_progress = 0;
  if (world_.canary() != Canary::kCommitRankMissing || !message->envelope.has_attempt_reports())
    return;
  for (const pb::AttemptReport& report : message->envelope.attempt_reports().reports()) {
    const auto live = state_->vol.live.find(report.job());
    if (!report.has_durable() || live == state_->vol.live.end()) continue;
    const size_t ranks = state_->durable.jobs.at(report.job()).ranks.size();
    for (uint32_t rank = 0; rank < ranks; ++rank)
      if (rank != report.durable().shard().rank())
        live->second.durable[report.durable().step()][rank] = report.durable();
  }
}

}  // namespace swax::sim
