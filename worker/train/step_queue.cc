#include "worker/train/step_queue.h"

#include <bit>

namespace swax {

void StepQueue::size_digests(size_t tensors) {
  for (Item& item : items_) item.digests.reserve(tensors);
}

void StepQueue::push(const StepReport& report, int64_t wall_ms) {
  if (full()) {
    head_ = (head_ + 1) % kItems;
    --count_;
    ++dropped_;
  }
  Item& item = items_[(head_ + count_) % kItems];
  item.report = report;
  item.wall_ms = wall_ms;
  item.digests.assign(report.digests.begin(),
                      report.digests.end());  // within what size_digests reserved
  item.report.digests = {};
  ++count_;
}

bool StepQueue::pop(Item* out) {
  if (count_ == 0) return false;
  Item& item = items_[head_];
  out->report = item.report;
  out->wall_ms = item.wall_ms;
  out->digests.assign(item.digests.begin(), item.digests.end());
  head_ = (head_ + 1) % kItems;
  --count_;
  return true;
}

pb::StepRecord step_record(const StepReport& report, const std::vector<DigestSums>& digests,
                           const std::vector<std::string>& state_names, uint64_t epoch,
                           int world_size, int64_t wall_ms) {
  pb::StepRecord r;
  r.set_step(static_cast<uint64_t>(report.step));
  r.set_epoch(epoch);
  r.set_window(static_cast<uint32_t>(report.window));
  r.set_loss_bits(std::bit_cast<uint64_t>(report.loss));
  r.set_norm_bits(std::bit_cast<uint64_t>(report.grad_norm));
  r.set_targets(static_cast<uint64_t>(report.targets));
  r.set_tokens(static_cast<uint64_t>(report.tokens));
  r.set_step_ns(report.step_ns);
  r.set_lr(report.lr);
  r.set_wall_ms(wall_ms);
  r.set_world_size(static_cast<uint32_t>(world_size));
  for (size_t i = 0; i < digests.size() && i < state_names.size(); ++i) {
    pb::TensorDigest& d = *r.add_digests();
    d.set_name(state_names[i]);
    d.set_digest0(digests[i].sum0);
    d.set_digest1(digests[i].sum1);
  }
  return r;
}

pb::ValidationRecord validation_record(const ValidationReport& report, uint64_t epoch) {
  pb::ValidationRecord r;
  r.set_step(static_cast<uint64_t>(report.step));
  r.set_epoch(epoch);
  r.set_loss_bits(std::bit_cast<uint64_t>(report.loss));
  r.set_bpb_bits(std::bit_cast<uint64_t>(report.bits_per_byte));
  r.set_targets(static_cast<uint64_t>(report.targets));
  r.set_text_bytes(static_cast<uint64_t>(report.text_bytes));
  r.set_final(report.final);
  return r;
}

}  // namespace swax
