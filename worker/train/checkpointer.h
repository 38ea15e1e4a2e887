// Checkpoints of a running job. At a step that all ranks agree on, each rank copies its shard of
// (master, m, v) to staging memory, on a stream of its own: the next step runs beside the copy and
// only its update waits for it (copied()). A background thread waits for the copy, too, and writes
// it (storage/checkpoint_store). When every rank is durable, rank 0 commits and retires in its
// background thread. Nothing here is a collective on the write path: progress is agreed in the
// small per-step exchange of flags. Loading: the newest committed checkpoint that every rank could
// read and whose tensor digests agree; a damaged one is marked bad, the reason is reported and the
// one before is taken. A save that finds no room on the disk is said and tried again at the next
// one, however often: a restart would make no room. Threads: the compute thread calls everything;
// one background thread per rank is owned by this class.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "proto/control.pb.h"
#include "storage/checkpoint_store.h"
#include "worker/train/fsdp.h"
#include "worker/train/reports.h"

namespace swax {

// Flags that ranks agree on by maximum at the end of each step.
struct StepFlags {
  enum Index { kStop, kSave, kSaving, kSaveFailed, kCommitting, kCommitFailed, kCount };
  std::array<int64_t, kCount> values{};
  int64_t& operator[](Index i) { return values[i]; }
  int64_t operator[](Index i) const { return values[i]; }
};

struct CheckpointerOptions {
  std::string ckpt_root;
  std::string job;
  uint64_t epoch = 1;
  std::string numeric_id, spec_hash, fingerprint, build_id;
  int keep = 3;
  int64_t tokens_per_step = 0;
  // Set: ranks report DURABLE here and somebody else commits (the coordinator). Not set: rank 0
  // commits.
  std::function<void(const pb::RankDurable&)> report_durable;
};

constexpr int kSaveFailuresMax = 3;  // in a row and not for want of room; then the run ends loudly

class Checkpointer {
 public:
  static Result<std::unique_ptr<Checkpointer>> create(RankContext& rank, Fsdp& fsdp,
                                                      const StateTable& table,
                                                      const CheckpointerOptions& options,
                                                      ReportSink* sink);
  ~Checkpointer();

  // Fills the state from the newest good checkpoint and returns its step, or 0 without touching the
  // state when there is none. kFailedPrecondition: a checkpoint of another numeric_id stands there.
  Result<int64_t> load();
  // Starts a save of the state after `step` steps. Only when idle(). All ranks call it at the same
  // step.
  Status begin(int64_t step, double loss);
  bool idle() const { return phase_ == Phase::kIdle; }
  // The copy of the last begin() is done: master, m and v may change.
  Event copied() const { return copied_; }
  int64_t last_saved_step() const { return saved_step_; }  // or loaded; -1: none
  bool no_room() const { return no_room_; }                // the last save failed for that
  void fill_flags(StepFlags& flags);
  // Moves on with the agreed flags. kResourceExhausted after kSaveFailuresMax failures in a row.
  Status settle(const StepFlags& agreed);  // no room is no failure of those
  int64_t staging_bytes() const;
  float* staging(int kind) { return staging_[kind].tensor.f32(); }

 private:
  enum class Phase { kIdle, kSaving, kCommitting };
  enum class Work { kNone, kWrite, kCommit, kDiscard, kQuit };
  struct Durable {  // what a rank tells the others; fixed size
    uint64_t chunks, bytes;
    char root_xxh3[40];
    char path[64];
  };
  Checkpointer(RankContext& rank, Fsdp& fsdp, const StateTable& table,
               const CheckpointerOptions& options, ReportSink* sink);
  void background();
  void post(Work work);
  Status write();
  Status copy_state();
  Status commit();
  Status discard();
  Status try_load(const CheckpointName& name);
  void call_bad(const CheckpointName& name, const std::string& reason);
  Status read_pieces(CheckpointReader& reader);
  Status check_digests(const pb::CheckpointManifest& manifest);
  Status settle_failure(int64_t kind);
  Status gather_durable();
  pb::CheckpointManifest base_manifest() const;
  void report_durable();

  RankContext& rank_;
  Fsdp& fsdp_;
  const StateTable& table_;
  const CheckpointerOptions options_;
  ReportSink* sink_;
  std::array<Block, kStateKinds> staging_;
  std::unique_ptr<Stream> copy_;  // enqueued to by the compute thread
  Event copied_;

  Phase phase_ = Phase::kIdle;
  int64_t step_ = -1;  // of the save that goes on, or of the last one
  int64_t saved_step_ = -1;
  double loss_ = 0.0;
  int failures_ = 0;
  bool no_room_ = false, discarding_ = false;
  CheckpointName discard_;             // folder of the last failed save
  std::vector<DigestSums> sums_;       // of this rank's part, made by the background thread
  std::vector<std::byte> mine_, all_;  // durable exchange
  pb::RankShard shard_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Work work_ = Work::kNone;
  bool busy_ = false;
  Status result_;
  std::thread thread_;
};

}  // namespace swax
