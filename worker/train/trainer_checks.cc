// Trainer: what looks at the state without changing it (digest, validation), and the test hook that
// does.
#include <cmath>
#include <cstring>

#include "proto/base/clock.h"
#include "proto/base/math.h"
#include "proto/base/text.h"
#include "worker/train/trainer.h"

namespace swax {
// Sums over all ranks into digest_sums_: on the device per piece, then modulo 2^64 over ranks.
Status Trainer::digest_sums() {
  const Tensor flats[kStateKinds] = {fsdp_->master(), fsdp_->adam_m(), fsdp_->adam_v()};
  std::memset(host_digest_.tensor.data, 0, static_cast<size_t>(host_digest_.tensor.bytes()));
  SWAX_TRY(backend_.copy(*compute_, digest_.tensor, host_digest_.tensor));
  const int count = static_cast<int>(shape_.tensors.size());
  for (int kind = 0; kind < kStateKinds; ++kind) {
    for (const StatePiece& piece : table_->pieces()) {
      const int id = kind * count + piece.tensor;
      SWAX_TRY(
          backend_.digest(*compute_, {.x = flat_part(flats[kind], piece.flat_begin, piece.elements),
                                      .name_hash = table_->name_hash(id),
                                      .first_element = static_cast<uint64_t>(piece.tensor_begin),
                                      .sums = flat_part(digest_.tensor, 2 * id, 2)}));
    }
  }
  SWAX_TRY(backend_.copy(*compute_, host_digest_.tensor, digest_.tensor));
  SWAX_TRY(backend_.sync(*compute_));
  static_assert(sizeof(DigestSums) == 2 * sizeof(int64_t));
  std::memcpy(digest_sums_.data(), host_digest_.tensor.data,
              digest_sums_.size() * sizeof(DigestSums));
  SWAX_TRY(rank_->shard.all_gather_host(std::as_bytes(std::span(digest_sums_)),
                                        std::as_writable_bytes(std::span(gathered_digests_))));
  std::fill(digest_sums_.begin(), digest_sums_.end(), DigestSums{});
  for (size_t i = 0; i < gathered_digests_.size(); ++i) {
    DigestSums& sum = digest_sums_[i % digest_sums_.size()];
    sum.sum0 += gathered_digests_[i].sum0;
    sum.sum1 += gathered_digests_[i].sum1;
  }
  return ok();
}

Result<std::string> Trainer::digest() {
  SWAX_TRY(digest_sums());
  return table_->run_digest(digest_sums_, step_).hex();
}

// Window i goes to rank i mod W; scores are added in window order, so the value does not depend on
// the number of ranks. Without a window nothing is reported.
Status Trainer::validate_state(bool final) {
  const int64_t all = source_->validation_windows();
  if (all == 0) return ok();  // a value of nothing would look like a perfect one
  phase("validate");
  const int64_t wanted = options_.spec.validation().sequences();
  const int64_t count = final || wanted == 0 ? all : std::min(all, wanted);
  const int ranks = slots_.ranks;
  WindowScore total;
  StepCtx ctx = step_ctx(backend_, options_.spec.window().long_());
  const Tensor loss = flat_part(losses_.tensor, 0, 1);
  const Tensor host_loss = flat_part(host_losses_.tensor, 0, 1);
  SystemClock clock;
  int64_t said_ns = clock.monotonic_ns();
  for (int64_t first = 0; first < count; first += ranks) {
    // A round needs every rank: having done one is a sign of life of all.
    if (constexpr int64_t kSayNs = 1'000'000'000; clock.monotonic_ns() - said_ns > kSayNs) {
      phase("validate");
      said_ns = clock.monotonic_ns();
    }
    const int64_t mine = first + rank_->shard.rank();
    WindowScore score;
    if (mine < count) {
      // A subset is spread evenly over the held-out windows.
      SWAX_TRY(source_->validation(mine * all / count, &validation_batch_));
      SWAX_TRY(load_slot(validation_batch_, 0));
      host_loss.f64()[0] = 0.0;
      SWAX_TRY(backend_.copy(*compute_, loss, host_loss));
      SWAX_TRY(model_->eval_slot(ctx, *fsdp_, loss, Tensor{}, Tensor{}));
      SWAX_TRY(backend_.copy(*compute_, host_loss, loss));
      SWAX_TRY(backend_.sync(*compute_));
      score = {.loss = host_loss.f64()[0],
               .targets = validation_batch_.targets,
               .text_bytes = validation_batch_.text_bytes};
    } else {
      SWAX_TRY(fsdp_->idle_eval_slot());
    }
    SWAX_TRY(rank_->shard.all_gather_host(std::as_bytes(std::span(&score, 1)),
                                          std::as_writable_bytes(std::span(round_))));
    for (int rank = 0; rank < ranks && first + rank < count; ++rank) {
      total.loss += round_[rank].loss;
      total.targets += round_[rank].targets;
      total.text_bytes += round_[rank].text_bytes;
    }
  }
  ValidationReport report;
  report.step = step_;
  report.final = final;
  report.targets = total.targets;
  report.text_bytes = total.text_bytes;
  report.loss = total.targets > 0 ? total.loss / static_cast<double>(total.targets) : 0.0;
  report.bits_per_byte = total.text_bytes > 0
                             ? total.loss / math::log(2.0) / static_cast<double>(total.text_bytes)
                             : 0.0;
  validation_bpb_ = report.bits_per_byte;
  if (speaks()) options_.sink->validation(report);
  phase("train");
  return ok();
}

Status Trainer::flip_gradient() {
  const int tensor = shape_.find(options_.flip.tensor);
  if (tensor < 0) return invalid_argument("gradient flip: no tensor " + options_.flip.tensor);
  if (options_.flip.element >= shape_.tensors[tensor].elements())
    return invalid_argument("gradient flip: " + options_.flip.tensor + " has " +
                            to_text(shape_.tensors[tensor].elements()) + " elements");
  SWAX_TRY(backend_.sync(*comm_));
  for (const StatePiece& piece : table_->pieces()) {
    const int64_t offset = options_.flip.element - piece.tensor_begin;
    if (piece.tensor != tensor || offset < 0 || offset >= piece.elements) continue;
    uint32_t bits = 0;
    const Tensor host = Tensor::of(&bits, DType::kF32, {1});
    const Tensor element = flat_part(fsdp_->gradient_sum(), piece.flat_begin + offset, 1);
    SWAX_TRY(backend_.copy(*compute_, host, element));
    SWAX_TRY(backend_.sync(*compute_));
    bits ^= 1U << options_.flip.bit;
    SWAX_TRY(backend_.copy(*compute_, element, host));
    SWAX_TRY(backend_.sync(*compute_));
  }
  return ok();
}

}  // namespace swax
