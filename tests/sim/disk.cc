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

constexpr size_t kHead = 16;  // bytes and checksum

}  // namespace

void Disk::write(const Batch& batch) {
  const std::string payload = encode(batch);
  put(&log_, payload.size());
  put(&log_, xxh3_64(payload));
  log_ += payload;
}

void Disk::crash() {
  const size_t loose = log_.size() - synced_;
  if (loose == 0) return;
  const size_t kept = world_.below(loose + 1);
  switch (world_.below(3)) {
    case 0:
      log_.resize(synced_);
      world_.fired(Fault::kWriteLost);
      break;
    case 1:
      log_.resize(synced_ + kept);
      if (kept < loose) world_.fired(Fault::kWriteTorn);
      break;
    default: {
      const size_t at = synced_ + world_.below(loose);
      log_[at] = static_cast<char>(log_[at] ^ 0x20);
      world_.fired(Fault::kWriteTorn);
    }
  }
}

std::vector<Batch> Disk::read() {
  std::vector<Batch> batches;
  size_t whole = 0;
  std::string_view in = log_;
  while (in.size() >= kHead) {
    std::string_view head = in;
    const uint64_t size = get_number(&head);
    const uint64_t sum = get_number(&head);
    if (head.size() < size || xxh3_64(head.substr(0, size)) != sum) break;
    batches.push_back(decode(head.substr(0, size)));
    in = head.substr(size);
    whole = log_.size() - in.size();
  }
  log_.resize(whole);
  synced_ = whole;
  return batches;
}

}  // namespace swax::sim
