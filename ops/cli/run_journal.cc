#include "ops/cli/run_journal.h"

#include <charconv>

#include "proto/base/text.h"
#include "storage/rocks_kv.h"

namespace swax {

Result<std::unique_ptr<RunJournal>> RunJournal::open(const StateDir& state, Clock& clock) {
  SWAX_ASSIGN(std::unique_ptr<Kv> db, open_rocks_kv(state.db_folder(), KvMode::kCreate));
  std::unique_ptr<RunJournal> journal(new RunJournal(std::move(db), clock));
  if (const Status loaded = journal->load(); !loaded.ok())
    return loaded.with_context(state.db_folder());
  return journal;
}

Status RunJournal::load() {
  const Result<std::string> bytes = db_->get(kRunKey);
  if (!bytes.ok() && bytes.status().code() != Code::kNotFound) return bytes.status();
  has_run_ = bytes.ok();
  if (has_run_ && !run_.ParseFromString(*bytes)) return data_loss("the run record cannot be read");
  Status damaged;
  SWAX_TRY(db_->scan(kEventPrefix, "", [&](std::string_view, std::string_view value) {
    pb::EventRecord event;
    if (!event.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
      damaged = data_loss("event " + to_text(next_sequence_) + " cannot be read");
      return false;
    }
    next_sequence_ = event.sequence() + 1;
    if (event.kind() == "attempt_ended") ended_epoch_ = event.epoch();
    return true;
  }));
  SWAX_TRY(damaged);
  if (!has_run_) return ok();
  const Result<std::string> tail = db_->get(tail_key(run_.epoch()));
  if (tail.ok()) {
    uint64_t value = 0;
    std::from_chars(tail->data(), tail->data() + tail->size(), value);
    tails_[run_.epoch()] = value;
  }
  return ok();
}

void RunJournal::begin_run(pb::RunRecord run) {
  run_ = std::move(run);
  has_run_ = true;
}

const pb::EventRecord& RunJournal::add(pb::EventRecord event) {
  event.set_sequence(next_sequence_++);
  if (event.wall_ms() == 0) event.set_wall_ms(clock_.wall_ms());
  if (event.epoch() == 0) event.set_epoch(run_.epoch());
  if (event.kind() == "attempt_ended") ended_epoch_ = event.epoch();
  unwritten_.push_back(std::move(event));
  return unwritten_.back();
}

const pb::EventRecord& RunJournal::add(std::string_view kind, uint64_t step, std::string text,
                                       const EventFields& fields) {
  pb::EventRecord event;
  event.set_kind(std::string(kind));
  event.set_step(step);
  event.set_text(std::move(text));
  for (const auto& [key, value] : fields) (*event.mutable_fields())[key] = value;
  return add(std::move(event));
}

uint64_t RunJournal::tail(uint64_t epoch) const {
  const auto found = tails_.find(epoch);
  return found == tails_.end() ? 0 : found->second;
}

void RunJournal::set_tail(uint64_t epoch, uint64_t bytes) { tails_[epoch] = bytes; }

Status RunJournal::write(bool sync) {
  std::vector<KvWrite> batch;
  batch.push_back({std::string(kRunKey), run_.SerializeAsString()});
  for (const pb::EventRecord& event : unwritten_)
    batch.push_back({event_key(event.sequence()), event.SerializeAsString()});
  for (const auto& [epoch, bytes] : tails_)
    batch.push_back({tail_key(epoch), to_text(static_cast<uint64_t>(bytes))});
  SWAX_TRY(db_->write(batch, sync));
  unwritten_.clear();
  return ok();
}

}  // namespace swax
