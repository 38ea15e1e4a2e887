#include "ops/cli/run_history.h"

#include <bit>

#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax {
namespace {

uint64_t digests_hash(const pb::StepRecord& record) {
  Hasher128 hasher;
  for (const pb::TensorDigest& d : record.digests()) {
    hasher.update(d.name());
    const uint64_t sums[2] = {d.digest0(), d.digest1()};
    hasher.update(sums, sizeof sums);
  }
  return hasher.digest().low;
}

std::string difference(const char* what, uint64_t before, uint64_t after) {
  const auto text = [](uint64_t bits) {
    const double value = std::bit_cast<double>(bits);
    return to_text(value) + " (" + hex_bits(value) + ")";
  };
  return std::string(what) + " " + text(before) + " -> " + text(after);
}

}  // namespace

std::vector<std::string> StepBits::load_before(const StateDir& state, uint64_t epoch) {
  std::vector<std::string> problems;
  const Result<std::vector<uint64_t>> epochs = recorded_epochs(state);
  if (!epochs.ok()) return {epochs.status().message()};
  for (const uint64_t e : *epochs) {
    if (e >= epoch) continue;
    const Status read = visit_reports(state, e, [this](const pb::RankReport& report) {
      if (report.has_step()) add(report.step());
      return true;
    });
    if (!read.ok()) problems.push_back(read.message());
  }
  return problems;
}

std::optional<Divergence> StepBits::add(const pb::StepRecord& record) {
  if (record.step() == 0 || record.step() > steps_max_) return std::nullopt;
  if (record.step() >= steps_.size()) steps_.resize(record.step() + 1);
  Bits& known = steps_[record.step()];
  const bool has_digests = record.digests_size() > 0;
  const uint64_t digests = has_digests ? digests_hash(record) : 0;
  std::string text;
  uint64_t earlier = known.epoch;
  if (known.epoch == 0) {
    known = {.epoch = record.epoch(), .loss = record.loss_bits(), .norm = record.norm_bits()};
  } else {
    if (known.loss != record.loss_bits())
      text += difference("loss", known.loss, record.loss_bits());
    if (known.norm != record.norm_bits())
      text +=
          (text.empty() ? "" : ", ") + difference("gradient norm", known.norm, record.norm_bits());
  }
  if (has_digests && known.digests_epoch == 0) {
    known.digests_epoch = record.epoch();
    known.digests = digests;
  } else if (has_digests && known.digests != digests) {
    if (text.empty()) earlier = known.digests_epoch;
    text += std::string(text.empty() ? "" : ", ") + "tensor digests";
  }
  if (text.empty()) return std::nullopt;
  return Divergence{.step = record.step(),
                    .earlier_epoch = earlier,
                    .later_epoch = record.epoch(),
                    .text = std::move(text)};
}

}  // namespace swax
