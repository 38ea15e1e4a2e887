#include "tests/sim/clients.h"

#include "proto/base/text.h"

namespace swax::sim {
namespace {

constexpr int kOk = 0, kUnknown = 3, kConflict = 4;

}  // namespace

void Clients::start() {
  for (const auto& [name, job] : jobs_) {
    plan(job, Verb::kSubmit, job.submit_ms);
    if (job.cancel_ms >= 0) plan(job, Verb::kCancel, job.cancel_ms);
    if (job.resume_ms >= 0) plan(job, Verb::kResume, job.resume_ms);
  }
}

void Clients::plan(const SimJob& job, Verb verb, int64_t at_ms) {
  const size_t index = askers_.size();
  Asker asker;
  asker.verb = verb;
  asker.endpoint =
      network_.add_endpoint([this, index](const pb::Envelope& e) { on_reply(index, e); });
  asker.request.set_request_id(xxh3_128(job.name + "/" + to_text(static_cast<int>(verb))).hex());
  pb::Request& request = *asker.request.mutable_request();
  switch (verb) {
    case Verb::kSubmit:
      *request.mutable_submit()->mutable_spec() = job.spec;
      request.mutable_submit()->set_priority(static_cast<int32_t>(world_.below(3)));
      break;
    case Verb::kCancel:
      request.mutable_cancel()->set_job(job.name);
      request.mutable_cancel()->set_now(job.cancel_now);
      break;
    case Verb::kResume:
      request.mutable_resume()->set_job(job.name);
      break;
  }
  askers_.push_back(std::move(asker));
  ++open_;
  world_.after(at_ms, [this, index] { ask(index); });
}

void Clients::ask(size_t index) {
  Asker& asker = askers_[index];
  if (asker.answered) return;
  network_.reconnect(asker.endpoint);
  network_.send_to_coordinator(asker.endpoint, asker.request);
  world_.after(world_.between(2000, 5000), [this, index] { ask(index); });
}

void Clients::on_reply(size_t index, const pb::Envelope& envelope) {
  Asker& asker = askers_[index];
  if (asker.answered || !envelope.has_reply()) return;
  const int code = envelope.reply().code();
  const std::string& job = asker.verb == Verb::kSubmit
                               ? asker.request.request().submit().spec().job().name()
                               : asker.request.request().cancel().job();
  if (asker.verb == Verb::kSubmit) {
    if (code != kOk) world_.violation("submit_kept", job + ": " + envelope.reply().error());
    oracle_.on_submit_acknowledged(job);
  } else if (code == kUnknown) {
    return;  // its submit is not through yet
  } else if (code != kOk && code != kConflict) {
    world_.violation("submit_kept", envelope.reply().error());
  }
  asker.answered = true;
  --open_;
}

}  // namespace swax::sim
