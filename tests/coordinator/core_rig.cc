#include "tests/coordinator/core_rig.h"

#include <algorithm>

#include "jobs/spec.h"
#include "proto/base/text.h"
#include "tests/jobs/spec_texts.h"

namespace swax::coord::test {

pb::JobSpec small_spec(const std::string& name, uint32_t ranks) {
  const SpecResult result = load_spec(
      swax::test::minimal_with("global_batch_size = 4", "global_batch_size = 8"), "test", {});
  SWAX_CHECK(result.ok());
  pb::JobSpec spec = result.spec;
  spec.mutable_job()->set_name(name);
  spec.mutable_parallelism()->set_ranks(ranks);
  spec.mutable_parallelism()->clear_allowed_ranks();
  spec.mutable_parallelism()->add_allowed_ranks(ranks);
  spec.mutable_data()->mutable_sources(0)->set_digest(std::string(32, 'a'));
  spec.mutable_checkpoint()->set_keep_latest_k(2);
  return spec;
}

CoreRig::CoreRig() {
  config_.cluster_id = "cluster";
  config_.store = "/store";
  config_.store_nonce = "nonce";
  config_.store_nonce_file = "nonce-file";
  state_.durable.coordinator_epoch = 1;
  give(Started{});
}

void CoreRig::give(EventBody body) {
  out_ = coord::step(state_, config_,
                     {.now_ms = now_, .wall_ms = 5'000'000 + now_, .body = std::move(body)});
  for (const pb::JobRecord& record : out_.records) {
    EXPECT_EQ(apply_record(replayed_, record), std::nullopt);
    journal_.push_back(record);
  }
  answers_.insert(answers_.end(), out_.answers.begin(), out_.answers.end());
  taken_.insert(taken_.end(), out_.taken.begin(), out_.taken.end());
  for (const Command& command : out_.commands)
    if (const auto* send = std::get_if<Send>(&command))
      sent_.emplace_back(send->peer, send->envelope);
}

void CoreRig::pass(int64_t ms) {
  for (const int64_t end = now_ + ms; now_ < end;) {
    now_ += 200;
    give(Tick{});
  }
}

void CoreRig::tell(uint64_t peer, pb::Envelope envelope) {
  give(Message{.peer = peer, .envelope = std::move(envelope), .body_hash = "hash"});
}

void CoreRig::join(int number, uint32_t slots, uint64_t incarnation, const std::string& state_id) {
  pb::Envelope e;
  e.set_node(node(number));
  e.set_incarnation(incarnation);
  e.set_sequence(++sequence_[number]);
  incarnation_[number] = incarnation;
  e.mutable_hello()->set_state_id(state_id.empty() ? "state-" + std::to_string(number) : state_id);
  e.mutable_hello()->set_slots(slots);
  e.mutable_hello()->set_build_id("build");
  e.mutable_hello()->set_host("host-" + std::to_string(number));
  e.mutable_hello()->set_store_nonce("nonce");
  tell(static_cast<uint64_t>(number) + 1, std::move(e));
}

void CoreRig::beat(int number, const std::vector<pb::RunningAttempt>& attempts) {
  pb::Envelope e;
  e.set_node(node(number));
  e.set_incarnation(incarnation_[number]);
  e.set_sequence(++sequence_[number]);
  e.mutable_heartbeat();
  for (const pb::RunningAttempt& attempt : attempts)
    *e.mutable_heartbeat()->add_attempts() = attempt;
  tell(static_cast<uint64_t>(number) + 1, std::move(e));
}

void CoreRig::live(int count, int64_t ms) {
  for (const int64_t end = now_ + ms; now_ < end;) {
    for (int number = 0; number < count; ++number) {
      std::vector<pb::RunningAttempt> attempts;
      for (const auto& [name, attempt] : state_.vol.live) {
        const std::vector<pb::RankPlacement>& ranks = job(name).ranks;
        const bool here = std::any_of(ranks.begin(), ranks.end(), [number](const auto& rank) {
          return rank.node() == node(number);
        });
        if (here && !attempt.ends.contains(node(number))) attempts.push_back(running(name));
      }
      beat(number, attempts);
    }
    pass(std::min<int64_t>(1000, end - now_));
  }
}

pb::Reply CoreRig::ask(const pb::Request& request, const std::string& id) {
  pb::Envelope e;
  e.set_request_id(id.empty() ? "0123456789abcdef000000000000" + std::to_string(1000 + ++request_)
                              : id);
  *e.mutable_request() = request;
  give(Message{.peer = 99, .envelope = e, .body_hash = request.SerializeAsString()});
  const auto sends = commands<Send>();
  for (const Send& send : sends)
    if (send.peer == 99) return send.envelope.reply();
  ADD_FAILURE() << "no reply";
  return {};
}

pb::Reply CoreRig::submit(const pb::JobSpec& spec, const std::string& id, int32_t priority) {
  pb::Request request;
  *request.mutable_submit()->mutable_spec() = spec;
  request.mutable_submit()->set_priority(priority);
  return ask(request, id);
}

pb::Reply CoreRig::cancel(const std::string& name, bool now) {
  pb::Request request;
  request.mutable_cancel()->set_job(name);
  request.mutable_cancel()->set_now(now);
  return ask(request);
}

uint64_t CoreRig::report(int number, std::vector<pb::AttemptReport> reports) {
  const uint64_t after = index_[number];
  for (pb::AttemptReport& r : reports) r.set_index(++index_[number]);
  return report_from(number, after, reports);
}

uint64_t CoreRig::report_from(int number, uint64_t after,
                              const std::vector<pb::AttemptReport>& reports) {
  pb::Envelope e;
  e.set_node(node(number));
  e.set_incarnation(incarnation_[number]);
  e.set_sequence(++sequence_[number]);
  e.mutable_attempt_reports()->set_after(after);
  for (const pb::AttemptReport& r : reports) *e.mutable_attempt_reports()->add_reports() = r;
  tell(static_cast<uint64_t>(number) + 1, std::move(e));
  uint64_t index = 0;
  for (const Send& send : commands<Send>())
    if (send.envelope.has_reports_acknowledged())
      index = std::max<uint64_t>(index, send.envelope.reports_acknowledged().index());
  return index;
}

void CoreRig::restart() {
  State fresh;
  fresh.durable.coordinator_epoch = state_.durable.coordinator_epoch + 1;
  for (const pb::JobRecord& record : journal_)
    EXPECT_EQ(apply_record(fresh.durable, record), std::nullopt);
  for (const RequestAnswer& answer : answers_) remember_answer(fresh.durable, answer);
  for (const ReportsTaken& taken : taken_) remember_taken(fresh.durable, taken);
  state_ = std::move(fresh);
  give(Started{});
}

std::vector<pb::Envelope> CoreRig::sent_to(int number) const {
  std::vector<pb::Envelope> found;
  for (const auto& [peer, envelope] : sent_)
    if (peer == static_cast<uint64_t>(number) + 1) found.push_back(envelope);
  return found;
}

std::vector<pb::StartAttempt> CoreRig::starts(const std::string& name) const {
  std::vector<pb::StartAttempt> found;
  for (const auto& [peer, e] : sent_)
    if (e.has_start_attempt() && e.start_attempt().job() == name)
      found.push_back(e.start_attempt());
  return found;
}

std::vector<pb::StopAttempt> CoreRig::stops(const std::string& name) const {
  std::vector<pb::StopAttempt> found;
  for (const auto& [peer, e] : sent_)
    if (e.has_stop_attempt() && e.stop_attempt().job() == name) found.push_back(e.stop_attempt());
  return found;
}

std::vector<pb::JobRecord> CoreRig::records_of(const std::string& name) const {
  std::vector<pb::JobRecord> found;
  for (const pb::JobRecord& record : journal_)
    if (record.job() == name) found.push_back(record);
  return found;
}

std::string CoreRig::kinds_of(const std::string& name) const {
  std::string text;
  for (const pb::JobRecord& record : records_of(name))
    text += (text.empty() ? "" : " ") + history_event(record).kind();
  return text;
}

pb::RunningAttempt CoreRig::running(const std::string& name, const std::string& phase) {
  pb::RunningAttempt attempt;
  attempt.set_job(name);
  attempt.set_epoch(job(name).epoch);
  attempt.set_phase(phase);
  return attempt;
}

pb::AttemptReport CoreRig::about(const std::string& name) const {
  pb::AttemptReport r;
  r.set_job(name);
  r.set_epoch(state_.durable.jobs.at(name).epoch);
  return r;
}

pb::AttemptReport CoreRig::ended(const std::string& name, const std::string& result,
                                 uint64_t step) {
  pb::AttemptReport r = about(name);
  r.mutable_ended()->set_result(result);
  r.mutable_ended()->set_first_rank(result == "done" ? -1 : 0);
  r.mutable_ended()->set_step(step);
  r.mutable_ended()->set_reason("because of " + result);
  return r;
}

pb::AttemptReport CoreRig::durable(const std::string& name, uint64_t step, uint32_t rank) {
  pb::AttemptReport r = about(name);
  r.mutable_durable()->set_step(step);
  r.mutable_durable()->set_world_size(static_cast<uint32_t>(job(name).ranks.size()));
  r.mutable_durable()->mutable_shard()->set_rank(rank);
  return r;
}

pb::AttemptReport CoreRig::step(const std::string& name, uint64_t step) {
  pb::AttemptReport r = about(name);
  r.mutable_step()->set_step(step);
  return r;
}

pb::AttemptReport CoreRig::done(const std::string& name, uint64_t step) {
  pb::AttemptReport r = about(name);
  r.mutable_done()->set_outcome("done");
  r.mutable_done()->set_step(step);
  r.mutable_done()->set_digest("d1");
  return r;
}

void CoreRig::committed(const std::string& name, uint64_t step, bool ok) {
  CommittedWritten written;
  written.job = name;
  written.step = step;
  written.epoch = job(name).epoch;
  written.ok = ok;
  written.error = ok ? "" : "no space";
  written.world_size = static_cast<uint32_t>(job(name).ranks.size());
  give(written);
}

}  // namespace swax::coord::test
