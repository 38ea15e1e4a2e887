#include "tests/wire/hostile_frames.h"

#include <cstring>

#include "proto/base/hash.h"
#include "proto/frame.h"

namespace swax {
namespace {

pb::Envelope from_worker() {
  pb::Envelope envelope;
  envelope.set_node("worker-a");
  envelope.set_incarnation(7);
  envelope.set_sequence(3);
  return envelope;
}

pb::Envelope from_client(int n) {
  pb::Envelope envelope;
  envelope.set_request_id(std::string(31, '0') + static_cast<char>('a' + n));
  return envelope;
}

void add_worker_messages(std::vector<pb::Envelope>* all) {
  pb::Envelope hello = from_worker();
  hello.mutable_hello()->set_state_id("0123456789abcdef");
  hello.mutable_hello()->set_slots(2);
  hello.mutable_hello()->set_host("host-a");
  pb::RunningAttempt& running = *hello.mutable_hello()->add_attempts();
  running.set_job("quickstart");
  running.set_epoch(1);
  running.set_phase("train");
  all->push_back(hello);

  pb::Envelope beat = from_worker();
  *beat.mutable_heartbeat()->add_attempts() = running;
  all->push_back(beat);

  pb::Envelope reports = from_worker();
  pb::AttemptReport& report = *reports.mutable_attempt_reports()->add_reports();
  report.set_index(1);
  report.set_job("quickstart");
  report.set_epoch(1);
  report.mutable_step()->set_step(5);
  report.mutable_step()->set_loss_bits(0x4010000000000000);
  pb::AttemptReport& durable = *reports.mutable_attempt_reports()->add_reports();
  durable.set_index(2);
  durable.mutable_durable()->set_step(5);
  durable.mutable_durable()->set_world_size(2);
  durable.mutable_durable()->mutable_shard()->set_path("rank-00000.db");
  durable.mutable_durable()->add_digest_sums(11);
  pb::AttemptReport& ended = *reports.mutable_attempt_reports()->add_reports();
  ended.set_index(3);
  ended.mutable_ended()->set_result("signal");
  all->push_back(reports);

  pb::Envelope remote = from_worker();
  remote.mutable_launch_remote()->set_job("quickstart");
  remote.mutable_launch_remote()->set_target("worker-b");
  remote.mutable_launch_remote()->set_command("orted");
  all->push_back(remote);

  pb::Envelope exited = from_worker();
  exited.mutable_remote_exited()->set_job("quickstart");
  exited.mutable_remote_exited()->set_exit_code(255);
  all->push_back(exited);

  pb::Envelope bye = from_worker();
  bye.mutable_goodbye();
  all->push_back(bye);
}

void add_client_messages(std::vector<pb::Envelope>* all) {
  pb::Envelope submit = from_client(0);
  pb::SubmitRequest& request = *submit.mutable_request()->mutable_submit();
  request.mutable_spec()->mutable_job()->set_name("quickstart");
  request.mutable_spec()->mutable_training()->set_steps(100);
  request.add_plan()->set_ranks(2);
  all->push_back(submit);
  pb::Envelope cancel = from_client(1);
  cancel.mutable_request()->mutable_cancel()->set_job("quickstart");
  all->push_back(cancel);
  pb::Envelope resume = from_client(2);
  resume.mutable_request()->mutable_resume()->set_job("quickstart");
  all->push_back(resume);
  pb::Envelope events = from_client(3);
  events.mutable_request()->mutable_events()->set_job("quickstart");
  all->push_back(events);
  pb::Envelope list = from_client(4);
  list.mutable_request()->mutable_list()->set_all(true);
  all->push_back(list);
  pb::Envelope steps = from_client(5);
  steps.mutable_request()->mutable_steps()->set_job("quickstart");
  all->push_back(steps);
}

}  // namespace

std::vector<pb::Envelope> sample_envelopes() {
  std::vector<pb::Envelope> all;
  add_worker_messages(&all);
  add_client_messages(&all);
  return all;
}

std::string frame_of(std::string_view payload) {
  std::string frame("SWX1\1\0\0\0", 8);
  const uint32_t bytes = static_cast<uint32_t>(payload.size());
  const uint64_t hash = xxh3_64(payload);
  frame.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  frame.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return frame.append(payload);
}

HostileFrames::HostileFrames(uint64_t seed) : seed_(seed) {
  for (const pb::Envelope& envelope : sample_envelopes())
    payloads_.push_back(envelope.SerializeAsString());
}

uint32_t HostileFrames::random(uint32_t below) {
  return random_block(seed_, Purpose::kTest, index_++)[0] % below;
}

void HostileFrames::damage(std::string* bytes) {
  for (uint32_t changes = 1 + random(4); changes > 0; --changes) {
    const uint32_t size = static_cast<uint32_t>(bytes->size());
    const uint32_t at = random(size + 1);
    switch (random(4)) {
      case 0:
        if (at < size) (*bytes)[at] = static_cast<char>(random(256));
        break;
      case 1:
        bytes->resize(at);
        break;
      case 2:
        bytes->insert(at, std::string(1 + random(64), static_cast<char>(random(256))));
        break;
      default:
        bytes->insert(at, bytes->substr(at / 2, 1 + random(64)));
        break;
    }
  }
}

std::string HostileFrames::next() {
  std::string payload = payloads_[random(static_cast<uint32_t>(payloads_.size()))];
  switch (random(4)) {
    case 0: {  // random bytes, sometimes under a right header
      std::string bytes(random(2000), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random(256));
      return random(2) == 0 ? bytes : frame_of(bytes);
    }
    case 1: {  // a damaged frame
      std::string frame = frame_of(payload);
      damage(&frame);
      return frame;
    }
    default:
      damage(&payload);
      return frame_of(payload);
  }
}

}  // namespace swax
