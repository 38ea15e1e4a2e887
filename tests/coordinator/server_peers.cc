#include "tests/coordinator/server_peers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>

#include "jobs/spec.h"
#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "storage/checkpoint_store.h"

namespace swax::test {

int64_t now_ms() {
  SystemClock clock;
  return clock.monotonic_ms();
}

std::unique_ptr<coord::Server> open_server(const std::string& state) {
  coord::ServerOptions options;
  options.state = state;
  options.listen = "tcp://127.0.0.1:0";
  options.timing.suspect_ms = 60000;
  options.timing.lost_ms = 120000;
  Result<std::unique_ptr<coord::Server>> server = coord::Server::open(options);
  EXPECT_TRUE(server.ok()) << server.status().to_string();
  return server.ok() ? std::move(server).value() : nullptr;
}

std::string request_id(uint64_t number) {
  char text[40];
  std::snprintf(text, sizeof text, "%032llx", static_cast<unsigned long long>(number));
  return text;
}

pb::JobSpec job_spec(const std::string& name, uint32_t ranks) {
  static const std::string text =
      read_file(std::string(SWAX_SOURCE_DIR) + "/jobs/quickstart.toml", kSpecBytesMax).value();
  static const SpecResult loaded = load_spec(text, "quickstart.toml", {});
  EXPECT_TRUE(loaded.ok());
  pb::JobSpec spec = loaded.spec;
  spec.mutable_job()->set_name(name);
  spec.mutable_parallelism()->set_ranks(ranks);
  return spec;
}

pb::Request submit_request(const std::string& name, uint32_t ranks) {
  pb::Request request;
  *request.mutable_submit()->mutable_spec() = job_spec(name, ranks);
  return request;
}

pb::AttemptReport report_of(const std::string& job, uint64_t epoch) {
  pb::AttemptReport report;
  report.set_job(job);
  report.set_epoch(epoch);
  return report;
}

pb::AttemptReport step_report(const std::string& job, uint64_t epoch, uint64_t step, double loss) {
  pb::AttemptReport report = report_of(job, epoch);
  report.mutable_step()->set_step(step);
  report.mutable_step()->set_epoch(epoch);
  report.mutable_step()->set_loss_bits(std::bit_cast<uint64_t>(loss));
  return report;
}

pb::AttemptReport durable_report(const std::string& store, const std::string& job, uint64_t epoch,
                                 uint64_t step, uint32_t rank) {
  const uint64_t begin = rank * kTensorElements / 2;
  const std::vector<float> values(kTensorElements / 2, static_cast<float>(step + rank));
  const std::vector<ShardRange> ranges = {{.tensor_id = 0, .begin = begin, .data = values}};
  const Result<pb::RankShard> shard = write_shard({.ckpt_root = store + "/jobs/" + job + "/ckpt",
                                                   .name = {.step = step, .epoch = epoch},
                                                   .rank = rank,
                                                   .world_size = 2},
                                                  ranges);
  EXPECT_TRUE(shard.ok()) << shard.status().to_string();
  pb::AttemptReport report = report_of(job, epoch);
  pb::RankDurable& durable = *report.mutable_durable();
  durable.set_step(step);
  durable.set_world_size(2);
  *durable.mutable_shard() = shard.value();
  uint64_t sums[2] = {0, 0};
  const uint64_t name_hash = xxh3_64("model/w");
  for (uint64_t i = 0; i < values.size(); ++i) {
    for (int k = 0; k < 2; ++k)
      sums[k] += digest_mix(k, name_hash, begin + i, std::bit_cast<uint32_t>(values[i]));
  }
  durable.add_digest_sums(sums[0]);
  durable.add_digest_sums(sums[1]);
  if (rank != 0) return report;
  pb::CheckpointManifest& base = *durable.mutable_base();
  base.set_job(job);
  base.set_step(step);
  base.set_epoch(epoch);
  pb::CheckpointTensor& tensor = *base.add_tensors();
  tensor.set_name("model/w");
  tensor.set_dtype("f32");
  tensor.add_shape(2);
  tensor.add_shape(3);
  return report;
}

pb::RunningAttempt running(const std::string& job, uint64_t epoch) {
  pb::RunningAttempt attempt;
  attempt.set_job(job);
  attempt.set_epoch(epoch);
  attempt.set_phase("train");
  return attempt;
}

TestClient::TestClient(const std::string& address)
    : channel_(std::move(ClientChannel::connect(address)).value()) {
  static std::atomic<uint64_t> clients = 0;
  next_id_ = ++clients << 32;
}

pb::Reply TestClient::ask(const pb::Request& request, const std::string& id, int64_t timeout_ms) {
  pb::Envelope envelope;
  envelope.set_request_id(id);
  *envelope.mutable_request() = request;
  channel_->send(envelope);
  for (const int64_t end = now_ms() + timeout_ms; now_ms() < end;) {
    for (pb::Envelope& answer : channel_->poll(50, 16))
      if (answer.request_id() == id && answer.has_reply()) return answer.reply();
  }
  pb::Reply none;
  none.set_code(-1);
  none.set_error("no answer; " + channel_->trouble());
  return none;
}

pb::Reply TestClient::ask(const pb::Request& request, int64_t timeout_ms) {
  return ask(request, request_id(++next_id_), timeout_ms);
}

pb::Reply TestClient::submit(const std::string& name, uint32_t ranks) {
  return ask(submit_request(name, ranks));
}

pb::JobStatus TestClient::status(const std::string& job) {
  pb::Request request;
  request.mutable_status()->set_job(job);
  const pb::Reply reply = ask(request);
  EXPECT_EQ(reply.code(), 0) << reply.error();
  return reply.jobs_size() == 1 ? reply.jobs(0) : pb::JobStatus();
}

std::vector<pb::EventRecord> TestClient::events(const std::string& job) {
  std::vector<pb::EventRecord> all;
  for (;;) {
    pb::Request request;
    request.mutable_events()->set_job(job);
    request.mutable_events()->set_from(all.size() + 1);
    const pb::Reply reply = ask(request);
    EXPECT_EQ(reply.code(), 0) << reply.error();
    if (reply.events_size() == 0) return all;
    all.insert(all.end(), reply.events().begin(), reply.events().end());
  }
}

pb::ServiceStatus TestClient::service() {
  pb::Request request;
  request.mutable_service();
  return ask(request).service();
}

TestWorker::TestWorker(const std::string& address, std::string node, uint32_t slots)
    : node_(std::move(node)),
      slots_(slots),
      channel_(std::move(ClientChannel::connect(address)).value()) {}

void TestWorker::stamp(pb::Envelope* envelope) {
  envelope->set_cluster_id(cluster_id_);
  envelope->set_coordinator_epoch(coordinator_epoch_);
  envelope->set_node(node_);
  envelope->set_incarnation(1);
  envelope->set_sequence(++sequence_);
}

void TestWorker::send(pb::Envelope envelope) {
  stamp(&envelope);
  channel_->send(envelope);
}

bool TestWorker::join(const std::vector<pb::RunningAttempt>& attempts) {
  running = attempts;
  for (const int64_t end = now_ms() + 60000; now_ms() < end;) {
    pb::Envelope hello;
    hello.mutable_hello()->set_state_id("state-of-" + node_);
    hello.mutable_hello()->set_slots(slots_);
    hello.mutable_hello()->set_store_nonce(nonce_);
    for (const pb::RunningAttempt& attempt : attempts)
      *hello.mutable_hello()->add_attempts() = attempt;
    send(hello);
    const size_t before = mail.size();
    take_mail(500);
    for (size_t i = before; i < mail.size(); ++i) {
      if (!mail[i].has_welcome()) continue;
      const pb::Welcome& welcome = mail[i].welcome();
      cluster_id_ = mail[i].cluster_id();
      coordinator_epoch_ = mail[i].coordinator_epoch();
      if (welcome.accepted()) return true;
      if (welcome.final()) return false;
      nonce_ = read_file(join_path(welcome.store(), welcome.store_nonce_file()), 100).value();
    }
  }
  return false;
}

void TestWorker::beat() {
  pb::Envelope envelope;
  envelope.mutable_heartbeat();
  for (const pb::RunningAttempt& attempt : running)
    *envelope.mutable_heartbeat()->add_attempts() = attempt;
  send(envelope);
  beat_ms_ = now_ms();
}

void TestWorker::take_mail(int timeout_ms) {
  for (pb::Envelope& envelope : channel_->poll(timeout_ms, 16)) {
    if (envelope.has_reports_acknowledged())
      acknowledged_ = std::max(acknowledged_, envelope.reports_acknowledged().index());
    mail.push_back(std::move(envelope));
  }
}

bool TestWorker::wait(const std::function<bool()>& done, int64_t timeout_ms) {
  for (const int64_t end = now_ms() + timeout_ms; !done() && now_ms() < end;) {
    if (now_ms() - beat_ms_ > 300) beat();
    take_mail(20);
  }
  return done();
}

bool TestWorker::wait_start(const std::string& job, pb::StartAttempt* start) {
  return wait([&] {
    for (const pb::Envelope& envelope : mail) {
      if (!envelope.has_start_attempt() || envelope.start_attempt().job() != job) continue;
      *start = envelope.start_attempt();
      return true;
    }
    return false;
  });
}

bool TestWorker::report(std::vector<pb::AttemptReport> reports, int64_t timeout_ms) {
  pb::Envelope envelope;
  // All reports before these were acknowledged: nothing older is left.
  envelope.mutable_attempt_reports()->set_after(0);
  for (pb::AttemptReport& report : reports) {
    report.set_index(next_report++);
    *envelope.mutable_attempt_reports()->add_reports() = report;
  }
  send(envelope);
  return wait([&] { return acknowledged_ + 1 >= next_report; }, timeout_ms);
}

}  // namespace swax::test
