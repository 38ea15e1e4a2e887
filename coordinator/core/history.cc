#include "coordinator/core/core.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

// "3 ranks: 2 on a, 1 on b". Ranks of a node follow each other.
std::string ranks_text(const pb::AttemptPlaced& placed) {
  std::string text = to_text(placed.ranks_size()) + (placed.ranks_size() == 1 ? " rank" : " ranks");
  const auto& ranks = placed.ranks();
  for (int from = 0, to = 0; from < ranks.size(); from = to) {
    while (to < ranks.size() && ranks[to].node() == ranks[from].node()) ++to;
    text += (from == 0 ? ": " : ", ") + to_text(to - from) + " on " + ranks[from].node();
  }
  return text;
}

void of_finished(const pb::AttemptFinished& finished, pb::EventRecord* e) {
  e->set_kind("attempt_ended");
  e->set_epoch(finished.epoch());
  e->set_step(finished.step());
  std::string text = finished.result();
  if (!finished.reason().empty()) text += ": " + finished.reason();
  e->set_text(std::move(text));
  auto& fields = *e->mutable_fields();
  fields["node"] = finished.node();
  fields["phase"] = finished.phase();
  if (finished.first_rank() >= 0) fields["rank"] = to_text(int64_t{finished.first_rank()});
  if (finished.signal() != 0) fields["signal"] = to_text(int64_t{finished.signal()});
  if (finished.exit_code() != 0) fields["exit_code"] = to_text(int64_t{finished.exit_code()});
  fields["restarts_since_commit"] = to_text(uint64_t{finished.restarts_since_commit()});
  fields["no_progress"] = to_text(uint64_t{finished.no_progress()});
  if (finished.retry_delay_ms() > 0) fields["retry_in"] = duration_text(finished.retry_delay_ms());
}

void of_checkpoint(const char* kind, uint64_t step, uint64_t epoch, std::string text,
                   pb::EventRecord* e) {
  e->set_kind(kind);
  e->set_step(step);
  e->set_epoch(epoch);
  e->set_text(std::move(text));
}

void fill(const pb::JobRecord& r, pb::EventRecord* e) {
  switch (r.kind_case()) {
    case pb::JobRecord::kCreated:
      e->set_kind("submitted");
      e->set_text("numeric id " + r.created().numeric_id());
      return;
    case pb::JobRecord::kPlaced:
      e->set_kind("attempt_started");
      e->set_epoch(r.placed().epoch());
      e->set_text(ranks_text(r.placed()));
      return;
    case pb::JobRecord::kRunning:
      e->set_kind("attempt_running");
      e->set_epoch(r.running().epoch());
      e->set_step(r.running().step());
      return;
    case pb::JobRecord::kFinished:
      return of_finished(r.finished(), e);
    case pb::JobRecord::kCommitted:
      return of_checkpoint("checkpoint_committed", r.committed().step(), r.committed().epoch(),
                           "digest " + r.committed().digest(), e);
    case pb::JobRecord::kRetired:
      return of_checkpoint("checkpoint_retired", r.retired().step(), r.retired().epoch(),
                           r.retired().reason(), e);
    case pb::JobRecord::kBad:
      return of_checkpoint("checkpoint_bad", r.bad().step(), r.bad().epoch(), r.bad().reason(), e);
    case pb::JobRecord::kStopAsked:
      e->set_kind("stop_asked");
      e->set_text(r.stop_asked().outcome() + (r.stop_asked().now() ? ", at once" : ""));
      return;
    case pb::JobRecord::kResumed:
      e->set_kind("resumed");
      return;
    case pb::JobRecord::kJobFinished:
      e->set_kind("job_ended");
      e->set_text(r.job_finished().state() + (r.job_finished().reason().empty() ? "" : ": ") +
                  r.job_finished().reason());
      return;
    case pb::JobRecord::kSpecChanged:
      e->set_kind("spec_changed");
      e->set_text(r.spec_changed().text());
      return;
    case pb::JobRecord::kNoted:
      return of_checkpoint(r.noted().kind().c_str(), r.noted().step(), r.noted().epoch(),
                           r.noted().text(), e);
    case pb::JobRecord::kResult:
      return of_checkpoint("result", r.result().step(), r.result().epoch(),
                           "digest " + r.result().digest(), e);
    case pb::JobRecord::KIND_NOT_SET:
      e->set_kind("unknown");
      return;
  }
}

}  // namespace

pb::EventRecord history_event(const pb::JobRecord& record) {
  pb::EventRecord e;
  e.set_sequence(record.number());
  e.set_wall_ms(record.wall_ms());
  fill(record, &e);
  return e;
}

}  // namespace swax::coord
