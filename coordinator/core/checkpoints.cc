// A save: DURABLE of every rank of the current epoch -> WriteCommitted -> CommittedWritten ->
// record CheckpointDone (the commit point) -> Retire -> Retired -> records. The attempt does not
// end, and so no later one is placed, while a commit is under way.
#include <algorithm>

#include "coordinator/core/internal.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

constexpr size_t kSavesMax = 4;  // incomplete ones of an attempt; a trainer has one at a time

uint64_t newest_committed(const Job& job) {
  uint64_t step = 0;
  for (const auto& [key, checkpoint] : job.checkpoints)
    if (key.second == job.epoch) step = std::max(step, key.first);
  return step;
}

// One commit of a job at a time, the newest complete save first: an older one would only come after
// retention has taken it away.
void start_commit(Context& ctx, const std::string& job_name, AttemptLive& live) {
  const Job& job = ctx.state.durable.jobs.at(job_name);
  if (!live.committing.empty()) return;
  for (auto save = live.durable.rbegin(); save != live.durable.rend(); ++save) {
    if (save->second.size() != job.ranks.size()) continue;
    WriteCommitted write;
    write.job = job_name;
    write.step = save->first;
    write.epoch = job.epoch;
    for (const auto& [rank, durable] : save->second) write.ranks.push_back(durable);
    const auto later = live.commit_later.find(save->first);
    live.committing[save->first] = later == live.commit_later.end() ? 1 : later->second + 1;
    live.commit_later.erase(save->first);
    ctx.out.commands.emplace_back(std::move(write));
    return;
  }
}

void record_commit(Context& ctx, const CommittedWritten& written) {
  pb::JobRecord r;
  pb::CheckpointDone& done = *r.mutable_committed();
  done.set_step(written.step);
  done.set_epoch(written.epoch);
  done.set_world_size(written.world_size);
  done.set_bytes(written.bytes);
  done.set_digest(written.digest);
  done.set_committed_ms(written.committed_ms);
  record(ctx, written.job, std::move(r));
}

// A coordinator that died between COMMITTED and its record left a checkpoint that no record knows,
// perhaps the last one: after each start the store is asked.
void on_found(Context& ctx, const CommittedWritten& found) {
  const Job* job = find_job(ctx.state, found.job);
  if (job == nullptr || job_ended(job->state) || found.epoch > job->epoch) return;
  if (job->checkpoints.contains({found.step, found.epoch})) return;
  record_commit(ctx, found);
  if (AttemptLive* live = find_live(ctx.state, found.job); live && found.epoch == job->epoch) {
    live->durable.erase(live->durable.begin(), live->durable.upper_bound(found.step));
    live->commit_later.erase(live->commit_later.begin(),
                             live->commit_later.upper_bound(found.step));
    settle_attempt(ctx, found.job);
  }
}

}  // namespace

bool commit_pending(const AttemptLive& live) {
  return !live.committing.empty() || !live.commit_later.empty();
}

void take_durable(Context& ctx, const Worker& worker, const std::string& job_name,
                  const pb::RankDurable& durable) {
  const Job* job = find_job(ctx.state, job_name);
  AttemptLive* live = find_live(ctx.state, job_name);
  if (job == nullptr || live == nullptr) return;
  const size_t world = job->ranks.size();
  const uint32_t rank = durable.shard().rank();
  const bool of_this_gang = durable.world_size() == world && rank < world;
  if (!of_this_gang || job->ranks[rank].node() != worker.node) return;
  if (durable.step() <= newest_committed(*job)) return;
  if (live->committing.contains(durable.step()) || live->commit_later.contains(durable.step()))
    return;
  auto& save = live->durable[durable.step()];
  save[rank] = durable;
  if (save.size() == world) start_commit(ctx, job_name, *live);
  if (live->durable.size() <= kSavesMax) return;
  const uint64_t oldest = live->durable.begin()->first;
  if (live->committing.contains(oldest)) return;
  live->commit_later.erase(oldest);
  live->durable.erase(oldest);
}

void on_committed(Context& ctx, const CommittedWritten& written) {
  if (written.found) return on_found(ctx, written);
  const Job* job = find_job(ctx.state, written.job);
  AttemptLive* live = find_live(ctx.state, written.job);
  if (job == nullptr || live == nullptr || job->epoch != written.epoch) return;
  const auto it = live->committing.find(written.step);
  if (it == live->committing.end()) return;
  const int tries = it->second;
  live->committing.erase(it);
  if (written.ok) {
    if (!job->checkpoints.contains({written.step, written.epoch})) record_commit(ctx, written);
    live->noted = 0;
    live->save_failed = false;
    // What is older is of no use any more.
    live->durable.erase(live->durable.begin(), live->durable.upper_bound(written.step));
    live->commit_later.erase(live->commit_later.begin(),
                             live->commit_later.upper_bound(written.step));
    start_commit(ctx, written.job, *live);
    retire_old(ctx, written.job);
  } else if (tries < ctx.config.commit_tries_max) {
    live->commit_later[written.step] = tries;
  } else {
    live->durable.erase(written.step);
    live->save_failed = true;
    start_commit(ctx, written.job, *live);
    note(ctx, written.job, "checkpoint_failed", written.step,
         "COMMITTED was not written: " + written.error);
  }
  settle_attempt(ctx, written.job);
}

void tick_checkpoints(Context& ctx) {
  for (auto& [job, live] : ctx.state.vol.live)
    if (!live.commit_later.empty()) start_commit(ctx, job, live);
  for (const std::string& job : ctx.state.durable.active) retire_old(ctx, job);
}

void retire_old(Context& ctx, const std::string& job_name) {
  const Job* job = find_job(ctx.state, job_name);
  if (job == nullptr || ctx.state.vol.retiring.contains(job_name)) return;
  const auto keep = std::max<uint32_t>(1, job->spec.checkpoint().keep_latest_k());
  const auto committed = std::count_if(job->checkpoints.begin(), job->checkpoints.end(),
                                       [](const auto& c) { return c.second.state == "COMMITTED"; });
  if (committed <= static_cast<int64_t>(keep)) return;
  ctx.state.vol.retiring.insert(job_name);
  ctx.out.commands.emplace_back(Retire{.job = job_name, .keep = static_cast<int>(keep)});
}

void on_retired(Context& ctx, const Retired& retired) {
  ctx.state.vol.retiring.erase(retired.job);
  const Job* job = find_job(ctx.state, retired.job);
  if (job == nullptr) return;
  for (const SaveKey& key : retired.removed) {
    const auto it = job->checkpoints.find(key);
    if (it == job->checkpoints.end() || it->second.state != "COMMITTED") continue;
    pb::JobRecord r;
    r.mutable_retired()->set_step(key.first);
    r.mutable_retired()->set_epoch(key.second);
    record(ctx, retired.job, std::move(r));
  }
}

// Ranks name the step only: the newest committed one of that step is what they tried to load.
void mark_checkpoint_bad(Context& ctx, const std::string& job_name, uint64_t step,
                         std::string why) {
  const Job* job = find_job(ctx.state, job_name);
  if (job == nullptr) return;
  const Checkpoint* newest = nullptr;
  for (const auto& [key, checkpoint] : job->checkpoints)
    if (key.first == step && checkpoint.state == "COMMITTED") newest = &checkpoint;
  if (newest == nullptr) return note(ctx, job_name, "checkpoint_bad", step, std::move(why));
  pb::JobRecord r;
  pb::CheckpointGone& bad = *r.mutable_bad();
  bad.set_step(step);
  bad.set_epoch(newest->epoch);
  bad.set_reason(std::move(why));
  record(ctx, job_name, std::move(r));
}

}  // namespace swax::coord
