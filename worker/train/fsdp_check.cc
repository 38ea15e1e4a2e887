// Fsdp: whether what the ranks exchange arrives as it was sent, through the buffers of the run.
#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "worker/train/fsdp.h"
#include "worker/train/state.h"

namespace swax {
namespace {

// Digests of f32 tensors, on a stream.
class Digests {
 public:
  Digests(Backend& backend, Stream& stream, const Tensor& sums, const Tensor& host_sums)
      : backend_(backend), stream_(stream), sums_(sums), host_(host_sums) {}

  Result<std::vector<DigestSums>> of(const std::vector<Tensor>& pieces) {
    std::vector<DigestSums> digests(pieces.size());
    const auto room = static_cast<size_t>(sums_.elements() / 2);
    for (size_t begin = 0; begin < pieces.size(); begin += room) {
      const size_t count = std::min(room, pieces.size() - begin);
      std::memset(host_.data, 0, static_cast<size_t>(host_.bytes()));
      SWAX_TRY(backend_.copy(stream_, sums_, host_));
      for (size_t i = 0; i < count; ++i)
        SWAX_TRY(backend_.digest(
            stream_,
            {.x = pieces[begin + i], .sums = flat_part(sums_, 2 * static_cast<int64_t>(i), 2)}));
      SWAX_TRY(backend_.copy(stream_, host_, sums_));
      SWAX_TRY(backend_.sync(stream_));
      static_assert(sizeof(DigestSums) == 2 * sizeof(int64_t));
      std::memcpy(&digests[begin], host_.data, count * sizeof(DigestSums));
    }
    return digests;
  }

 private:
  Backend& backend_;
  Stream& stream_;
  Tensor sums_, host_;
};

std::vector<Tensor> parts_of(const Tensor& flat, int ranks) {
  const int64_t count = exact_div(flat.elements(), int64_t{ranks});
  std::vector<Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(flat_part(flat, rank * count, count));
  return parts;
}

// The first call whose result was not what had been sent, and by whom.
struct Finding {
  enum Call : int64_t { kNone, kAllGather, kAllToAll };
  int64_t call = kNone;
  int64_t from = 0;

  void note(Call in, int wrong_from) {
    if (call == kNone && wrong_from >= 0) *this = {.call = in, .from = wrong_from};
  }
};

// Every rank learns of it, so that all end with the same reason. Not by max_host, which is a call
// of the steps.
Status agree(Collectives& group, const Finding& mine) {
  std::vector<Finding> all(static_cast<size_t>(group.size()));
  SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  const auto wrong =
      std::ranges::find_if(all, [](const Finding& f) { return f.call != Finding::kNone; });
  if (wrong == all.end()) return ok();
  const std::string call = wrong->call == Finding::kAllGather ? "all_gather" : "all_to_all";
  return internal_error("exchange test: " + call + ": what rank " + to_text(wrong->from) +
                        " sent to rank " + to_text(wrong - all.begin()) +
                        " arrived as something else; the link, its driver or NCCL has a fault "
                        "(other ways to exchange: SWAX_COMM_COPY_ENGINES=0, NCCL_P2P_DISABLE=1)");
}

int first_difference(std::span<const DigestSums> got, std::span<const DigestSums> sent) {
  for (size_t i = 0; i < got.size(); ++i)
    if (got[i].sum0 != sent[i].sum0 || got[i].sum1 != sent[i].sum1) return static_cast<int>(i);
  return -1;
}

// `own` [S], from another place on for each receiver, so that no two get the same.
Status copy_turned(RankContext& rank, const Tensor& own, size_t peer, const Tensor& piece) {
  const int64_t count = own.elements();
  const int64_t turn = count * static_cast<int64_t>(peer) / rank.shard.size();
  SWAX_TRY(rank.backend.copy(rank.compute, flat_part(piece, 0, count - turn),
                             flat_part(own, turn, count - turn)));
  if (turn == 0) return ok();
  return rank.backend.copy(rank.compute, flat_part(piece, count - turn, turn),
                           flat_part(own, 0, turn));
}

// Sends every rank the weights `own` [S], turned, with its number and that of the receiver at their
// head. The first rank whose piece is another one; -1: none.
Result<int> check_all_to_all(RankContext& rank, const Tensor& own, const Tensor& send,
                             const Tensor& received, Digests& digests) {
  constexpr int64_t kHead = 16;
  Backend& backend = rank.backend;
  Collectives& group = rank.shard;
  const auto ranks = static_cast<size_t>(group.size());
  const auto me = static_cast<size_t>(group.rank());
  const std::vector<Tensor> pieces = parts_of(send, group.size());
  for (size_t peer = 0; peer < ranks; ++peer) {
    const Tensor head = flat_part(pieces[peer], 0, std::min(kHead, own.elements()));
    SWAX_TRY(copy_turned(rank, own, peer, pieces[peer]));
    SWAX_TRY(
        backend.fill(rank.compute, {.x = head, .value = static_cast<float>(me * ranks + peer)}));
  }
  SWAX_ASSIGN(const auto mine, digests.of(pieces));
  std::vector<DigestSums> all(ranks * ranks), sent(ranks);
  SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(mine)),
                                 std::as_writable_bytes(std::span(all))));
  for (size_t peer = 0; peer < ranks; ++peer) sent[peer] = all[peer * ranks + me];
  backend.wait(rank.comm, backend.record(rank.compute));
  SWAX_ASSIGN(const Event arrived, group.all_to_all(rank.comm, send, received));
  backend.wait(rank.compute, arrived);
  SWAX_ASSIGN(const auto got, digests.of(parts_of(received, group.size())));
  for (const Tensor& used : {send, received})
    SWAX_TRY(backend.fill(rank.compute, {.x = used, .value = 0.0F}));
  return first_difference(got, sent);
}

}  // namespace

// The parts of a gathered unit and, last, what of it the others should get from this rank: as the
// master weights say, so that a gather that does the same wrong thing to all ranks' copies is found
// too. In f32; the buffers of gradients hold what is cast for that.
Result<std::vector<Tensor>> Fsdp::parts_to_check(int unit) {
  Backend& backend = rank_.backend;
  const UnitLayout& layout = layout_.units[unit];
  const Block& gathered = ring_[static_cast<size_t>(find(unit))].block;
  Tensor full = flat_part(gathered.tensor, 0, layout.flat_elements);
  Tensor own = flat_part(master_.tensor, unit_begin_[unit], layout.shard_elements);
  if (values_ != DType::kF32) {
    const Tensor wide = flat_part(received_.tensor, 0, layout.flat_elements);
    const Tensor own_wide = flat_part(exchanges_[0].block.tensor, 0, layout.shard_elements);
    const Tensor rounded =
        Tensor::of(exchanges_[1].block.tensor.data, values_, {layout.shard_elements});
    SWAX_TRY(backend.cast(rank_.compute, {.from = full, .to = wide}));
    SWAX_TRY(backend.cast(rank_.compute, {.from = own, .to = rounded}));
    SWAX_TRY(backend.cast(rank_.compute, {.from = rounded, .to = own_wide}));
    full = wide;
    own = own_wide;
  }
  std::vector<Tensor> parts = parts_of(full, plan_.ranks);
  parts.push_back(own);
  return parts;
}

Status Fsdp::check_exchange(const Tensor& sums, const Tensor& host_sums) {
  if (plan_.ranks == 1) return ok();
  Collectives& group = rank_.shard;
  // To make or to load weights takes each rank as long as it takes; a device call has a limit.
  SWAX_TRY(group.barrier());
  Digests digests(rank_.backend, rank_.compute, sums, host_sums);
  Finding finding;
  for (int unit = 0; unit < shape_.units(); ++unit) {
    SWAX_TRY(acquire(unit, -1));
    SWAX_ASSIGN(const std::vector<Tensor> parts, parts_to_check(unit));
    SWAX_ASSIGN(const auto got, digests.of(parts));
    SWAX_TRY(release(unit));
    std::vector<DigestSums> sent(static_cast<size_t>(plan_.ranks));
    SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(&got.back(), 1)),
                                   std::as_writable_bytes(std::span(sent))));
    finding.note(Finding::kAllGather, first_difference(std::span(got).first(sent.size()), sent));
  }
  const auto largest =
      static_cast<int>(std::ranges::max_element(layout_.units, {}, &UnitLayout::flat_elements) -
                       layout_.units.begin());
  const Tensor own = flat_part(master_.tensor, unit_begin_[largest], unit_elements(largest));
  for (const Exchange& each : exchanges_) {
    SWAX_ASSIGN(const int wrong_from,
                check_all_to_all(rank_, own, each.block.tensor, received_.tensor, digests));
    finding.note(Finding::kAllToAll, wrong_from);
  }
  return agree(group, finding);
}

}  // namespace swax
