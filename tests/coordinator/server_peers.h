// Peers of a coordinator for its tests: a client that asks and waits for the answer, and a worker
// that registers, beats and reports as a node agent does, without running anything.
// Threads: one per peer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server.h"
#include "proto/wire/channel.h"

namespace swax::test {

int64_t now_ms();
// Nobody is lost for being slow: the machine that tests may be.
std::unique_ptr<coord::Server> open_server(const std::string& state);
// 32 hex digits from a number.
std::string request_id(uint64_t number);
// jobs/quickstart.toml under another name.
pb::JobSpec job_spec(const std::string& name, uint32_t ranks = 1);
pb::Request submit_request(const std::string& name, uint32_t ranks = 1);

// Reports as an agent makes them; TestWorker::report gives them their index.
pb::AttemptReport report_of(const std::string& job, uint64_t epoch);
pb::AttemptReport step_report(const std::string& job, uint64_t epoch, uint64_t step, double loss);
pb::RunningAttempt running(const std::string& job, uint64_t epoch);
// Writes the shard of one of two ranks (a tensor of 6 elements, each has a half) and reports it.
constexpr uint64_t kTensorElements = 6;
pb::AttemptReport durable_report(const std::string& store, const std::string& job, uint64_t epoch,
                                 uint64_t step, uint32_t rank);

class TestClient {
 public:
  explicit TestClient(const std::string& address);
  // The answer; code -1 when there is none within the time.
  pb::Reply ask(const pb::Request& request, const std::string& id, int64_t timeout_ms = 60000);
  pb::Reply ask(const pb::Request& request, int64_t timeout_ms = 60000);  // under its own id
  pb::Reply submit(const std::string& name, uint32_t ranks = 1);
  pb::JobStatus status(const std::string& job);
  std::vector<pb::EventRecord> events(const std::string& job);
  pb::ServiceStatus service();

 private:
  std::unique_ptr<ClientChannel> channel_;
  uint64_t next_id_;
};

class TestWorker {
 public:
  TestWorker(const std::string& address, std::string node, uint32_t slots);
  // Says HELLO (with the nonce of the store it is shown) until it is accepted. False: it was not.
  bool join(const std::vector<pb::RunningAttempt>& attempts = {});
  void beat();
  void send(pb::Envelope envelope);
  // Reports under the next indexes, until they are acknowledged. False: they were not.
  bool report(std::vector<pb::AttemptReport> reports, int64_t timeout_ms = 60000);
  // Beats and takes mail until `done` or the time is over; all mail so far is in `mail`.
  bool wait(const std::function<bool()>& done, int64_t timeout_ms = 60000);
  bool wait_start(const std::string& job, pb::StartAttempt* start);

  std::vector<pb::Envelope> mail;
  std::vector<pb::RunningAttempt> running;  // what the beats say
  uint64_t next_report = 1;                 // a worker goes on where it was

 private:
  void take_mail(int timeout_ms);
  void stamp(pb::Envelope* envelope);

  const std::string node_;
  const uint32_t slots_;
  std::unique_ptr<ClientChannel> channel_;
  std::string cluster_id_, nonce_;
  uint64_t coordinator_epoch_ = 0, sequence_ = 0, acknowledged_ = 0;
  int64_t beat_ms_ = 0;
};

}  // namespace swax::test
