#include "coordinator/core_loop.h"

#include <algorithm>

#include "coordinator/queries.h"
#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

constexpr int kInternal = 1;
constexpr int64_t kTickMs = 200;
constexpr size_t kMessagesPerRound = 512, kRequestsPerRound = 64;
constexpr int64_t kRetryMs = 500;  // between tries to write a batch
// Below this new work is refused, so that the records of what runs still find room.
constexpr int64_t kSpaceMin = 8 * kMiB;
constexpr int64_t kSpaceCheckMs = 100;

const char* record_name(const pb::JobRecord& record) {
  const auto* field =
      pb::JobRecord::descriptor()->FindFieldByNumber(static_cast<int>(record.kind_case()));
  return field == nullptr ? "unknown" : field->name().c_str();
}

}  // namespace

CoreLoop::CoreLoop(Options options, State state, std::unique_ptr<Journal> journal, Inbox& inbox,
                   Outgoing& outgoing)
    : config_(std::move(options.config)),
      state_folder_(std::move(options.state_folder)),
      state_(std::move(state)),
      journal_(std::move(journal)),
      inbox_(inbox),
      outgoing_(outgoing) {}

void CoreLoop::attach(SocketLoop& socket, CheckpointFiles& files) {
  socket_ = &socket;
  files_ = &files;
}

int64_t CoreLoop::busy_ms() const {
  const int64_t since = busy_since_ms_.load(std::memory_order_relaxed);
  SystemClock clock;
  return since == 0 ? 0 : clock.monotonic_ms() - since;
}

void CoreLoop::run() {
  round({Started{}});
  next_tick_ms_ = clock_.monotonic_ms() + kTickMs;
  while (!inbox_.stopped()) {
    const int64_t wait = std::clamp<int64_t>(next_tick_ms_ - clock_.monotonic_ms(), 0, kTickMs);
    std::vector<EventBody> events = noted_.empty()
                                        ? inbox_.take(wait, kMessagesPerRound, kRequestsPerRound)
                                        : std::exchange(noted_, {});
    // The clock's turn comes after what has arrived: a beat that waited here was heard in time.
    if (clock_.monotonic_ms() >= next_tick_ms_) {
      events.emplace_back(Tick{});
      next_tick_ms_ = clock_.monotonic_ms() + kTickMs;
    }
    if (!events.empty()) round(std::move(events));
  }
}

void CoreLoop::round(std::vector<EventBody> events) {
  busy_since_ms_ = clock_.monotonic_ms();
  for (EventBody& event : events) take(std::move(event));
  if (commit()) release();
  busy_since_ms_ = 0;
}

void CoreLoop::take(EventBody body) {
  if (auto* message = std::get_if<Message>(&body)) {
    if (answered_by_shell(message->envelope)) {
      actions_.emplace_back(Query{message->peer, std::move(message->envelope)});
      return;
    }
    if (refused_for_space(*message)) return;
  }
  Event event;
  event.now_ms = clock_.monotonic_ms();
  event.wall_ms = clock_.wall_ms();
  event.body = std::move(body);
  Output output = step(state_, config_, event);
  for (const pb::JobRecord& record : output.records) {
    has_submit_ |= record.has_created();
    has_start_ |= record.has_placed();
    has_commit_ |= record.has_committed();
    log_info("coordinator", "record",
             {{"job", record.job()}, {"number", record.number()}, {"kind", record_name(record)}});
  }
  journal_->add(output);
  for (Command& command : output.commands) actions_.emplace_back(std::move(command));
}

// What has not ended goes on anyway: `swax run` typed again resumes it.
bool CoreLoop::begins_something(const pb::Request& request) const {
  if (!request.has_resume()) return request.has_submit();
  const auto job = state_.durable.jobs.find(request.resume().job());
  return job != state_.durable.jobs.end() && job_ended(job->second.state);
}

bool CoreLoop::refused_for_space(const Message& message) {
  if (!message.envelope.has_request() || !begins_something(message.envelope.request()))
    return false;
  if (state_.durable.requests.contains(message.envelope.request_id())) return false;  // known
  const int64_t now = clock_.monotonic_ms();
  if (now - space_checked_ms_ >= kSpaceCheckMs) {
    space_checked_ms_ = now;
    const Result<int64_t> free = free_bytes(state_folder_);
    space_left_ = !free.ok() || *free >= kSpaceMin;
  }
  if (space_left_) return false;
  pb::Reply reply;
  reply.set_code(kInternal);
  reply.set_error("the disk of the coordinator's state " + state_folder_ + " is full (less than " +
                  bytes_text(kSpaceMin) + " left): nothing new is taken" +
                  (state_.vol.live.empty() ? "" : "; running jobs go on"));
  answer(message.peer, message.envelope.request_id(), std::move(reply));
  return true;
}

// False: stopped before the batch could be written; nothing of it was told to anyone.
bool CoreLoop::commit() {
  if (!journal_->pending()) return true;
  for (Status status = journal_->commit(); !status.ok(); status = journal_->commit()) {
    log_error("coordinator", "state cannot be written, nothing goes on until it can",
              {{"reason", status.message()}});
    const int64_t again = clock_.monotonic_ms() + kRetryMs;
    while (clock_.monotonic_ms() < again && !inbox_.stopped()) answer_while_stuck(status.message());
    if (inbox_.stopped()) return false;
  }
  if (has_submit_) SWAX_FAILPOINT("coord.submit_journaled");
  if (has_start_) SWAX_FAILPOINT("coord.start_journaled");
  if (has_commit_) SWAX_FAILPOINT("coord.commit_record_synced");
  has_submit_ = has_start_ = has_commit_ = false;
  return true;
}

// What is in memory is ahead of the disk: it must not be shown, and nothing can be promised.
void CoreLoop::answer_while_stuck(const std::string& why) {
  for (const Message& message : inbox_.take_requests(kRetryMs / 5, kRequestsPerRound)) {
    pb::Reply reply;
    if (message.envelope.request().has_service()) {
      reply =
          answer_query({state_, config_, *journal_, socket_->counts()}, message.envelope.request());
    } else {
      reply.set_code(kInternal);
      reply.set_error("the coordinator's state cannot be written (" + why +
                      "): nothing is taken or shown until it can; running jobs go on. The same "
                      "request may be sent again");
    }
    answer(message.peer, message.envelope.request_id(), std::move(reply));
  }
  flush();
}

void CoreLoop::release() {
  std::vector<StoreStep> steps;
  for (Action& action : actions_) {
    auto* command = std::get_if<Command>(&action);
    if (command == nullptr) continue;
    if (auto* step = std::get_if<StoreStep>(command)) steps.push_back(std::move(*step));
  }
  // Before the acknowledgements of the reports that brought them.
  for (Noted& noted : journal_->store_steps(steps)) noted_.emplace_back(std::move(noted));
  const SocketLoop::Counts counts = socket_->counts();
  for (Action& action : actions_) {
    if (auto* query = std::get_if<Query>(&action)) {
      answer(query->peer, query->envelope.request_id(),
             answer_query({state_, config_, *journal_, counts}, query->envelope.request()));
    } else {
      release_command(std::move(std::get<Command>(action)));
    }
  }
  actions_.clear();
  flush();
}

void CoreLoop::release_command(Command command) {
  if (auto* send = std::get_if<Send>(&command)) {
    if (send->envelope.has_reply()) fit_reply(send->envelope.mutable_reply());
    sending_.emplace_back(std::move(*send));
  } else if (auto* forget = std::get_if<ForgetPeer>(&command)) {
    sending_.emplace_back(*forget);
  } else if (auto* write = std::get_if<WriteCommitted>(&command)) {
    files_->post(std::move(*write));
  } else if (auto* find = std::get_if<FindCommitted>(&command)) {
    files_->post(std::move(*find));
  } else if (auto* retire = std::get_if<Retire>(&command)) {
    CheckpointFiles::Retention retention{.command = std::move(*retire), .known = {}};
    const auto job = state_.durable.jobs.find(retention.command.job);
    if (job != state_.durable.jobs.end()) {
      for (const auto& [key, checkpoint] : job->second.checkpoints)
        if (checkpoint.state == "COMMITTED") retention.known.push_back(key);
    }
    files_->post(std::move(retention));
  }
}

void CoreLoop::answer(uint64_t peer, const std::string& request_id, pb::Reply reply) {
  Send send;
  send.peer = peer;
  send.envelope.set_cluster_id(config_.cluster_id);
  send.envelope.set_coordinator_epoch(state_.durable.coordinator_epoch);
  send.envelope.set_sequence(++state_.vol.sequence);
  send.envelope.set_request_id(request_id);
  *send.envelope.mutable_reply() = std::move(reply);
  sending_.emplace_back(std::move(send));
}

void CoreLoop::flush() {
  if (sending_.empty()) return;
  outgoing_.push(std::exchange(sending_, {}));
  socket_->wake();
}

}  // namespace swax::coord
