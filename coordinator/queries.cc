#include "coordinator/queries.h"

#include <algorithm>

#include "proto/base/build_info.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

constexpr int kNotFound = 3, kInternal = 1;
constexpr uint32_t kRowsMax = 1000;
constexpr size_t kReplyBytesMax = 200 * kKiB;  // leaves room for the envelope in a frame

void cut_text(std::string* text, size_t bytes_max) {
  if (text->size() <= bytes_max) return;
  text->resize(bytes_max);
  while (!text->empty() && !valid_utf8(*text)) text->pop_back();
}

pb::Reply refusal(int code, std::string error) {
  pb::Reply reply;
  reply.set_code(code);
  reply.set_error(std::move(error));
  return reply;
}

bool known(const State& state, const std::string& job) {
  return state.durable.jobs.contains(job) || state.durable.held.contains(job);
}

uint32_t rows(uint32_t limit) { return limit == 0 ? kRowsMax : std::min(limit, kRowsMax); }

// Adds rows until the answer is full. False: no more.
class Filler {
 public:
  explicit Filler(uint32_t limit) : left_(rows(limit)) {}
  bool take(size_t bytes) {
    if (left_ == 0 || bytes_ + bytes > kReplyBytesMax) return false;
    --left_;
    bytes_ += bytes + 8;  // tag and length
    return true;
  }

 private:
  uint32_t left_;
  size_t bytes_ = 0;
};

pb::Reply answer_events(const QueryContext& context, const pb::EventsRequest& request) {
  pb::Reply reply;
  Filler filler(request.limit());
  const Status status = context.journal.visit_records(
      request.job(), request.from(), [&](const pb::JobRecord& record) {
        pb::EventRecord event = history_event(record);
        cut_text(event.mutable_text(), 16 * kKiB);  // so that every row fits
        if (!filler.take(event.ByteSizeLong())) return false;
        *reply.add_events() = std::move(event);
        return true;
      });
  return status.ok() ? reply : refusal(kInternal, status.message());
}

pb::Reply answer_steps(const QueryContext& context, const pb::StepsRequest& request) {
  pb::Reply reply;
  Filler filler(request.limit());
  const Status status = context.journal.visit_steps(request.job(), request.from_step(),
                                                    [&](const pb::StepRecord& step) {
                                                      if (!filler.take(step.ByteSizeLong()))
                                                        return false;
                                                      *reply.add_steps() = step;
                                                      return true;
                                                    });
  return status.ok() ? reply : refusal(kInternal, status.message());
}

// Ranks write their own files; whoever reads them sees the store.
pb::Reply answer_logs(const QueryContext& context, const pb::LogsRequest& request) {
  const auto it = context.state.durable.jobs.find(request.job());
  const uint64_t newest = it == context.state.durable.jobs.end() ? 0 : it->second.epoch;
  const uint64_t epoch = request.epoch() == 0 ? newest : request.epoch();
  if (epoch == 0 || epoch > newest)
    return refusal(kNotFound, "job " + request.job() + " has no attempt " + to_text(epoch) +
                                  ": its newest is " + to_text(newest));
  pb::Reply reply;
  reply.set_path(join_path(context.config.store, "jobs/" + request.job() + "/logs/a" +
                                                     to_text(epoch) + "/rank-" +
                                                     to_text(uint64_t{request.rank()}) + ".log"));
  return reply;
}

pb::Reply answer_service(const QueryContext& context) {
  pb::Reply reply;
  pb::ServiceStatus& service = *reply.mutable_service();
  service.set_version(build_version());
  service.set_build_id(build_id());
  service.set_cluster_id(context.config.cluster_id);
  service.set_coordinator_epoch(context.state.durable.coordinator_epoch);
  service.set_store(context.config.store);
  service.set_jobs(context.state.durable.jobs.size());
  service.set_jobs_active(context.state.durable.active.size());
  service.set_nodes(context.state.vol.workers.size());
  service.set_commits(context.journal.commits());
  service.set_peers(context.counts.peers);
  for (const auto& [reason, count] : context.counts.refused)
    (*service.mutable_refused())[reason] = count;
  return reply;
}

// Takes rows of one kind from the end until the rest fits.
template <typename Rows>
void cut(size_t* bytes, Rows* list) {
  for (; list->size() > 0 && *bytes > kReplyBytesMax; list->RemoveLast())
    *bytes -= std::min(*bytes, list->rbegin()->ByteSizeLong());
}

}  // namespace

bool answered_by_shell(const pb::Envelope& envelope) {
  if (!envelope.has_request()) return false;
  const pb::Request& request = envelope.request();
  return request.has_events() || request.has_steps() || request.has_logs() || request.has_service();
}

pb::Reply answer_query(const QueryContext& context, const pb::Request& request) {
  if (request.has_service()) return answer_service(context);
  const std::string& job = request.has_events()  ? request.events().job()
                           : request.has_steps() ? request.steps().job()
                                                 : request.logs().job();
  if (!known(context.state, job)) return refusal(kNotFound, "no such job: " + printable(job));
  if (request.has_events()) return answer_events(context, request.events());
  if (request.has_steps()) return answer_steps(context, request.steps());
  return answer_logs(context, request.logs());
}

void fit_reply(pb::Reply* reply) {
  size_t bytes = reply->ByteSizeLong();
  if (bytes <= kReplyBytesMax) return;
  cut_text(reply->mutable_error(), 4 * kKiB);
  bytes = reply->ByteSizeLong();
  const auto rows_of = [&] {
    return reply->jobs_size() + reply->nodes_size() + reply->checkpoints_size();
  };
  const int rows_before = rows_of();
  cut(&bytes, reply->mutable_jobs());
  cut(&bytes, reply->mutable_nodes());
  cut(&bytes, reply->mutable_checkpoints());
  if (rows_of() == rows_before) return;
  reply->set_error("too long for one answer: " + to_text(rows_of()) + " of " +
                   to_text(rows_before) + " rows");
}

}  // namespace swax::coord
