#include "coordinator/journal.h"

#include <charconv>

#include "coordinator/core/core.h"
#include "coordinator/state_folder.h"
#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

constexpr std::string_view kClusterKey = "meta/cluster_id";
constexpr std::string_view kEpochKey = "meta/epoch";

std::string big_endian(uint64_t value) {
  std::string bytes(8, '\0');
  for (size_t i = 8; i-- > 0; value >>= 8) bytes[i] = static_cast<char>(value);
  return bytes;
}

uint64_t from_big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

std::string job_key(const std::string& job) { return "job/" + job; }
std::string records_prefix(const std::string& job) { return "rec/" + job + "/"; }
std::string steps_prefix(const std::string& job) { return "step/" + job + "/"; }

bool parse_number(std::string_view text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse(google::protobuf::MessageLite* message, std::string_view bytes) {
  return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

std::string bits_text(const pb::StepRecord& step) {
  char text[80];
  std::snprintf(text, sizeof text, "loss %016llx norm %016llx",
                static_cast<unsigned long long>(step.loss_bits()),
                static_cast<unsigned long long>(step.norm_bits()));
  return text;
}

Noted diverged(const std::string& job, const pb::StepRecord& before, const pb::StepRecord& now) {
  Noted noted;
  noted.job = job;
  noted.note.set_kind("diverged");
  noted.note.set_epoch(now.epoch());
  noted.note.set_step(now.step());
  noted.note.set_text("attempt " + to_text(now.epoch()) + " has " + bits_text(now) + ", attempt " +
                      to_text(before.epoch()) + " had " + bits_text(before) +
                      ": the same spec gives the same bits, so one of the machines is at fault");
  return noted;
}

}  // namespace

Result<std::vector<std::string>> recorded_jobs(Kv& kv) {
  std::vector<std::string> jobs;
  SWAX_TRY(kv.scan("job/", "", [&](std::string_view key, std::string_view) {
    jobs.emplace_back(key.substr(std::string_view("job/").size()));
    return true;
  }));
  return jobs;
}

Status read_job(Kv& kv, const std::string& job, Durable* durable, const VisitRecord& visit) {
  const std::string prefix = records_prefix(job);
  uint64_t number = 0;
  Status problem = ok();
  const Status scanned = kv.scan(prefix, "", [&](std::string_view key, std::string_view value) {
    const std::string which = "record " + to_text(++number);
    pb::JobRecord record;
    if (key.size() != prefix.size() + 8 || from_big_endian(key.substr(prefix.size())) != number)
      problem = data_loss(which + " is missing");
    else if (!parse(&record, value))
      problem = data_loss(which + " cannot be read");
    else if (record.number() != number || record.job() != job)
      problem = data_loss(which + " belongs elsewhere");
    else if (const auto why = apply_record(*durable, record))
      problem = data_loss(which + ": " + *why);
    return problem.ok() && (!visit || visit(record));
  });
  SWAX_TRY(problem);
  if (!scanned.ok()) return scanned.with_context("record " + to_text(number + 1));
  return number > 0 ? ok() : data_loss("record 1 is missing");
}

Result<std::unique_ptr<Journal>> Journal::open(std::unique_ptr<Kv> kv) {
  std::unique_ptr<Journal> journal(new Journal(std::move(kv)));
  SWAX_TRY(journal->start());
  return journal;
}

Status Journal::start() {
  const Result<std::string> cluster = kv_->get(kClusterKey);
  if (cluster.ok()) {
    cluster_id_ = *cluster;
    SWAX_ASSIGN(const std::string text, kv_->get(kEpochKey));
    if (!parse_number(text, &epoch_))
      return data_loss("coordinator state: its epoch " + printable(text) + " is no number");
  } else if (cluster.status().code() == Code::kNotFound) {
    cluster_id_ = random_id();
  } else {
    return cluster.status();
  }
  ++epoch_;
  return kv_->write({{.key = std::string(kClusterKey), .value = cluster_id_},
                     {.key = std::string(kEpochKey), .value = to_text(epoch_)}},
                    true);
}

Status Journal::recover(Durable* durable) {
  durable->coordinator_epoch = epoch_;
  SWAX_ASSIGN(const std::vector<std::string> jobs, recorded_jobs(*kv_));
  for (const std::string& job : jobs) {
    // Any problem concerns this job alone.
    const Status status = read_job(*kv_, job, durable, {});
    if (status.ok()) continue;
    log_error("coordinator", "job is held", {{"job", job}, {"reason", status.message()}});
    hold_job(*durable, job, status.message());
  }
  return recover_answers(durable);
}

Status Journal::recover_answers(Durable* durable) {
  SWAX_TRY(kv_->scan("req/", "", [&](std::string_view key, std::string_view value) {
    const size_t space = value.find(' ');
    if (space != std::string_view::npos)
      remember_answer(*durable, {.request_id = std::string(key.substr(4)),
                                 .body_hash = std::string(value.substr(0, space)),
                                 .job = std::string(value.substr(space + 1))});
    return true;
  }));
  return kv_->scan("taken/", "", [&](std::string_view key, std::string_view value) {
    ReportsTaken taken{.state_id = std::string(key.substr(6)), .index = 0};
    if (parse_number(value, &taken.index)) remember_taken(*durable, taken);
    return true;
  });
}

void Journal::add(const Output& output) {
  for (const pb::JobRecord& record : output.records) {
    if (record.has_created()) batch_.push_back({.key = job_key(record.job()), .value = ""});
    batch_.push_back({.key = records_prefix(record.job()) + big_endian(record.number()),
                      .value = record.SerializeAsString()});
  }
  for (const RequestAnswer& answer : output.answers)
    batch_.push_back(
        {.key = "req/" + answer.request_id, .value = answer.body_hash + " " + answer.job});
  for (const ReportsTaken& taken : output.taken)
    batch_.push_back({.key = "taken/" + taken.state_id, .value = to_text(taken.index)});
}

Status Journal::commit() {
  if (batch_.empty()) return ok();
  SWAX_TRY(kv_->write(batch_, true));
  batch_.clear();
  ++commits_;
  return ok();
}

std::vector<Noted> Journal::store_steps(const std::vector<StoreStep>& steps) {
  std::vector<Noted> notes;
  std::vector<KvWrite> writes;
  for (const StoreStep& step : steps) {
    const std::string key = steps_prefix(step.job) + big_endian(step.record.step());
    const Result<std::string> stored = kv_->get(key);
    pb::StepRecord before;
    const bool other_attempt =
        stored.ok() && parse(&before, *stored) && before.epoch() != step.record.epoch();
    if (other_attempt && (before.loss_bits() != step.record.loss_bits() ||
                          before.norm_bits() != step.record.norm_bits())) {
      notes.push_back(diverged(step.job, before, step.record));
    }
    writes.push_back({.key = key, .value = step.record.SerializeAsString()});
  }
  if (writes.empty()) return notes;
  // History only: a step that is lost is computed again or missing in a chart.
  if (const Status s = kv_->write(writes, false); !s.ok())
    log_warn("coordinator", "steps not stored",
             {{"steps", writes.size()}, {"reason", s.message()}});
  return notes;
}

Status Journal::visit_records(const std::string& job, uint64_t from, const VisitRecord& visit) {
  const std::string prefix = records_prefix(job);
  Status problem = ok();
  SWAX_TRY(
      kv_->scan(prefix, prefix + big_endian(from), [&](std::string_view, std::string_view value) {
        pb::JobRecord record;
        if (!parse(&record, value))
          problem = data_loss("a record of job " + job + " cannot be read");
        return problem.ok() && visit(record);
      }));
  return problem;
}

Status Journal::visit_steps(const std::string& job, uint64_t from, const VisitStep& visit) {
  const std::string prefix = steps_prefix(job);
  Status problem = ok();
  SWAX_TRY(
      kv_->scan(prefix, prefix + big_endian(from), [&](std::string_view, std::string_view value) {
        pb::StepRecord step;
        if (!parse(&step, value)) problem = data_loss("a step of job " + job + " cannot be read");
        return problem.ok() && visit(step);
      }));
  return problem;
}

}  // namespace swax::coord
