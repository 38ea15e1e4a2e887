#include "worker/train/reporter.h"

#include <bit>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "storage/record_log.h"

namespace swax {
namespace {

constexpr size_t kQueueItems = 256;

struct Item {
  bool is_step = false;
  StepReport step;
  ValidationReport validation;
  int64_t wall_ms = 0;
  bool has_digests = false;
  std::vector<DigestSums> digests;  // sized once
};

}  // namespace

struct RecordReporter::Impl {
  Impl(RecordLogWriter w, uint64_t e, int world, std::vector<std::string> names)
      : writer(std::move(w)), epoch(e), world_size(world), state_names(std::move(names)), items(kQueueItems) {
    for (Item& item : items) item.digests.resize(state_names.size());
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

  // Gives the compute thread its next free item, waiting when the queue is full.
  template <typename Fill>
  void push(const Fill& fill) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return count < kQueueItems; });
    Item& item = items[(head + count) % kQueueItems];
    fill(item);
    item.wall_ms = clock.wall_ms();
    ++count;
    lock.unlock();
    changed.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return count > 0 || stopping; });
      if (count == 0) return;
      Item& item = items[head];
      lock.unlock();
      append(message_of(item));
      lock.lock();
      head = (head + 1) % kQueueItems;
      --count;
      changed.notify_all();
    }
  }

  pb::RankReport message_of(const Item& item) const {
    pb::RankReport report;
    if (item.is_step) {
      pb::StepRecord& r = *report.mutable_step();
      r.set_step(static_cast<uint64_t>(item.step.step));
      r.set_epoch(epoch);
      r.set_window(static_cast<uint32_t>(item.step.window));
      r.set_loss_bits(std::bit_cast<uint64_t>(item.step.loss));
      r.set_norm_bits(std::bit_cast<uint64_t>(item.step.grad_norm));
      r.set_targets(static_cast<uint64_t>(item.step.targets));
      r.set_tokens(static_cast<uint64_t>(item.step.tokens));
      r.set_step_ns(item.step.step_ns);
      r.set_lr(item.step.lr);
      r.set_wall_ms(item.wall_ms);
      r.set_world_size(static_cast<uint32_t>(world_size));
      for (size_t i = 0; item.has_digests && i < state_names.size(); ++i) {
        pb::TensorDigest& d = *r.add_digests();
        d.set_name(state_names[i]);
        d.set_digest0(item.digests[i].sum0);
        d.set_digest1(item.digests[i].sum1);
      }
    } else {
      pb::ValidationRecord& r = *report.mutable_validation();
      r.set_step(static_cast<uint64_t>(item.validation.step));
      r.set_epoch(epoch);
      r.set_loss_bits(std::bit_cast<uint64_t>(item.validation.loss));
      r.set_bpb_bits(std::bit_cast<uint64_t>(item.validation.bits_per_byte));
      r.set_targets(static_cast<uint64_t>(item.validation.targets));
      r.set_text_bytes(static_cast<uint64_t>(item.validation.text_bytes));
      r.set_final(item.validation.final);
    }
    return report;
  }

  void append(const pb::RankReport& report) {
    std::lock_guard lock(file_mutex);
    if (const Status s = writer.append(report.SerializeAsString()); !s.ok())
      log_error("train", "step record not written", {{"reason", s.message()}});
  }

  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return count == 0; });
  }

  SystemClock clock;
  RecordLogWriter writer;
  const uint64_t epoch;
  const int world_size;
  const std::vector<std::string> state_names;
  std::mutex mutex, file_mutex;
  std::condition_variable changed;
  std::vector<Item> items;
  size_t head = 0, count = 0;
  bool stopping = false;
  std::thread thread;
};

Result<std::unique_ptr<RecordReporter>> RecordReporter::create(const std::string& path, uint64_t epoch, int world_size,
                                                               std::vector<std::string> state_names) {
  SWAX_ASSIGN(RecordLogWriter writer, RecordLogWriter::create(path));
  auto impl = std::make_unique<Impl>(std::move(writer), epoch, world_size, std::move(state_names));
  return std::unique_ptr<RecordReporter>(new RecordReporter(std::move(impl)));
}

RecordReporter::RecordReporter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RecordReporter::~RecordReporter() = default;

void RecordReporter::step(const StepReport& report) {
  impl_->push([&](Item& item) {
    item.is_step = true;
    item.step = report;
    item.has_digests = report.digests.size() == item.digests.size();
    for (size_t i = 0; item.has_digests && i < item.digests.size(); ++i) item.digests[i] = report.digests[i];
  });
}

void RecordReporter::validation(const ValidationReport& report) {
  impl_->push([&](Item& item) {
    item.is_step = false;
    item.validation = report;
  });
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
  if (const Status s = impl_->writer.sync(); !s.ok()) log_error("train", "record log not synced", {{"reason", s.message()}});
}

}  // namespace swax
