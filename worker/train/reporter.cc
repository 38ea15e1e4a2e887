#include "worker/train/reporter.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "storage/record_log.h"
#include "worker/train/step_queue.h"

namespace swax {
namespace {

// Validations are rare: they go through the same thread in order, one at a time.
struct PendingValidation {
  bool waiting = false;
  ValidationReport report;
};

}  // namespace

struct RecordReporter::Impl {
  Impl(RecordLogWriter w, uint64_t e, int world, std::vector<std::string> names)
      : writer(std::move(w)), epoch(e), world_size(world), state_names(std::move(names)) {
    steps.size_digests(state_names.size());
    thread = std::thread([this] { run(); });
  }
  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  bool idle() const { return steps.empty() && !validation.waiting && !writing; }

  void run() {
    std::unique_lock lock(mutex);
    StepQueue::Item item;
    item.digests.reserve(state_names.size());
    for (;;) {
      changed.wait(lock, [this] { return !steps.empty() || validation.waiting || stopping; });
      pb::RankReport report;
      // A validation is queued when no step waits: those in the queue came after it.
      if (validation.waiting) {
        *report.mutable_validation() = validation_record(validation.report, epoch);
        validation.waiting = false;
      } else if (steps.pop(&item)) {
        *report.mutable_step() =
            step_record(item.report, item.digests, state_names, epoch, world_size, item.wall_ms);
      } else {
        return;
      }
      writing = true;
      lock.unlock();
      append(report);
      lock.lock();
      writing = false;
      changed.notify_all();
    }
  }

  void append(const pb::RankReport& report) {
    std::lock_guard lock(file_mutex);
    if (const Status s = writer.append(report.SerializeAsString()); !s.ok())
      log_error("train", "step record not written", {{"reason", s.message()}});
  }

  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return idle(); });
  }

  SystemClock clock;
  RecordLogWriter writer;
  const uint64_t epoch;
  const int world_size;
  const std::vector<std::string> state_names;
  std::mutex mutex, file_mutex;
  std::condition_variable changed;
  StepQueue steps;
  PendingValidation validation;
  bool writing = false;
  bool stopping = false;
  std::thread thread;
};

Result<std::unique_ptr<RecordReporter>> RecordReporter::create(
    const std::string& path, uint64_t epoch, int world_size, std::vector<std::string> state_names) {
  SWAX_ASSIGN(RecordLogWriter writer, RecordLogWriter::create(path));
  auto impl = std::make_unique<Impl>(std::move(writer), epoch, world_size, std::move(state_names));
  return std::unique_ptr<RecordReporter>(new RecordReporter(std::move(impl)));
}

RecordReporter::RecordReporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RecordReporter::~RecordReporter() = default;

void RecordReporter::step(const StepReport& report) {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return !impl_->steps.full(); });
  impl_->steps.push(report, impl_->clock.wall_ms());
  lock.unlock();
  impl_->changed.notify_all();
}

void RecordReporter::validation(const ValidationReport& report) {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return impl_->idle(); });
  impl_->validation = {.waiting = true, .report = report};
  lock.unlock();
  impl_->changed.notify_all();
}

void RecordReporter::event(std::string_view kind, int64_t step, std::string_view text) {
  impl_->drain();
  pb::RankReport report;
  pb::EventRecord& e = *report.mutable_event();
  e.set_kind(std::string(kind));
  e.set_step(static_cast<uint64_t>(step));
  e.set_epoch(impl_->epoch);
  e.set_text(std::string(text));
  e.set_wall_ms(impl_->clock.wall_ms());
  impl_->append(report);
}

void RecordReporter::write(const pb::RankReport& report) {
  impl_->drain();
  impl_->append(report);
  std::lock_guard lock(impl_->file_mutex);
  if (const Status s = impl_->writer.sync(); !s.ok())
    log_error("train", "record log not synced", {{"reason", s.message()}});
}

}  // namespace swax
