#include "tests/sim/disk.h"

#include <cstring>

#include "proto/base/check.h"

namespace swax::sim {
namespace {

void put(std::string* out, uint64_t value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put(std::string* out, const std::string& text) {
  put(out, text.size());
  *out += text;
}
uint64_t get_number(std::string_view* in) {
  uint64_t value = 0;
  SWAX_CHECK(in->size() >= sizeof value);
  std::memcpy(&value, in->data(), sizeof value);
  in->remove_prefix(sizeof value);
  return value;
}
std::string get_text(std::string_view* in) {
  const uint64_t size = get_number(in);
  SWAX_CHECK(in->size() >= size);
  std::string text(in->substr(0, size));
  in->remove_prefix(size);
  return text;
}

std::string encode(const Batch& batch) {
  std::string out;
  put(&out, batch.coordinator_epoch);
  put(&out, batch.records.size());
  for (const pb::JobRecord& r : batch.records) put(&out, r.SerializeAsString());
  put(&out, batch.answers.size());
  for (const auto& a : batch.answers) {
    put(&out, a.request_id);
    put(&out, a.body_hash);
    put(&out, a.job);
  }
  put(&out, batch.taken.size());
  for (const auto& t : batch.taken) {
    put(&out, t.state_id);
    put(&out, t.index);
  }
  return out;
}

Batch decode(std::string_view in) {
  Batch batch;
  batch.coordinator_epoch = get_number(&in);
  batch.records.resize(get_number(&in));
  for (pb::JobRecord& r : batch.records) SWAX_CHECK(r.ParseFromString(get_text(&in)));
  batch.answers.resize(get_number(&in));
  for (auto& a : batch.answers) {
    a.request_id = get_text(&in);
    a.body_hash = get_text(&in);
    a.job = get_text(&in);
  }
  batch.taken.resize(get_number(&in));
  for (auto& t : batch.taken) {
    t.state_id = get_text(&in);
    t.index = get_number(&in);
  }
  return batch;
}

std::string encode(const agent::SaveOutbox& save) {
  std::string out;
  put(&out, save.add.size());
  for (const pb::AttemptReport& report : save.add) put(&out, report.SerializeAsString());
  put(&out, save.drop.size());
  for (const uint64_t index : save.drop) put(&out, index);
  put(&out, save.drop_through);
  put(&out, save.next_report);
  put(&out, save.job);
  put(&out, save.accepted_epoch);
  return out;
}

agent::SaveOutbox decode_save(std::string_view in) {
  agent::SaveOutbox save;
  save.add.resize(get_number(&in));
  for (pb::AttemptReport& report : save.add) SWAX_CHECK(report.ParseFromString(get_text(&in)));
  save.drop.resize(get_number(&in));
  for (uint64_t& index : save.drop) index = get_number(&in);
  save.drop_through = get_number(&in);
  save.next_report = get_number(&in);
  save.job = get_text(&in);
  save.accepted_epoch = get_number(&in);
  return save;
}

constexpr size_t kHead = 16;  // bytes and checksum

}  // namespace

void Log::write(const std::string& payload) {
  put(&bytes_, payload.size());
  put(&bytes_, xxh3_64(payload));
  bytes_ += payload;
}

void Log::crash() {
  const size_t loose = bytes_.size() - synced_;
  if (loose == 0) return;
  const size_t kept = world_.below(loose + 1);
  switch (world_.below(3)) {
    case 0:
      bytes_.resize(synced_);
      world_.fired(lost_);
      break;
    case 1:
      bytes_.resize(synced_ + kept);
      if (kept < loose) world_.fired(torn_);
      break;
    default: {
      const size_t at = synced_ + world_.below(loose);
      bytes_[at] = static_cast<char>(bytes_[at] ^ 0x20);
      world_.fired(torn_);
    }
  }
}

std::vector<std::string> Log::read() {
  std::vector<std::string> payloads;
  size_t whole = 0;
  std::string_view in = bytes_;
  while (in.size() >= kHead) {
    std::string_view head = in;
    const uint64_t size = get_number(&head);
    const uint64_t sum = get_number(&head);
    if (head.size() < size || xxh3_64(head.substr(0, size)) != sum) break;
    payloads.emplace_back(head.substr(0, size));
    in = head.substr(size);
    whole = bytes_.size() - in.size();
  }
  bytes_.resize(whole);
  synced_ = whole;
  return payloads;
}

void Disk::write(const Batch& batch) { log_.write(encode(batch)); }

std::vector<Batch> Disk::read() {
  std::vector<Batch> batches;
  for (const std::string& payload : log_.read()) batches.push_back(decode(payload));
  return batches;
}

void AgentDisk::write(const agent::SaveOutbox& save) { log_.write(encode(save)); }

void AgentDisk::load(agent::State* state) {
  for (const std::string& payload : log_.read()) {
    const agent::SaveOutbox save = decode_save(payload);
    for (const uint64_t index : save.drop) state->outbox.erase(index);
    state->outbox.erase(state->outbox.begin(), state->outbox.upper_bound(save.drop_through));
    for (const pb::AttemptReport& report : save.add) state->outbox[report.index()] = report;
    if (save.next_report > 0) state->next_report = save.next_report;
    if (!save.job.empty()) state->accepted[save.job] = save.accepted_epoch;
  }
}

}  // namespace swax::sim
