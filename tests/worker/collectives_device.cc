#include "tests/worker/collectives_device.h"

#include <algorithm>
#include <memory>

#include "proto/base/rng.h"
#include "proto/base/text.h"

namespace swax::test {
namespace {

// Element i that `from` sends to `to` (to = from for a gather) in round `round`.
int64_t element(int64_t round, int from, int to, int64_t i) {
  return ((round * 64 + from) * 64 + to) * 10'000'019 + i;
}

enum class Kind { kGather, kGatherInPlace, kExchange };

struct Round {
  Kind kind;
  int64_t count;  // elements of a piece
  int fills_before;
};

// The same on every rank but for the delay.
Round draw_round(int64_t round, int rank, int64_t elements_max) {
  const PhiloxBlock draw = random_block(11, Purpose::kTest, static_cast<uint64_t>(round));
  const PhiloxBlock own =
      random_block(12, Purpose::kTest, static_cast<uint64_t>(round * 64 + rank));
  const auto largest = static_cast<uint32_t>(draw[2] % 3 == 0 ? elements_max : 17);
  return {.kind = static_cast<Kind>(draw[0] % 3),
          .count = 1 + draw[1] % largest,
          .fills_before = own[0] % 2 == 0 ? static_cast<int>(own[1] % 4) : 0};
}

class DeviceContract {
 public:
  DeviceContract(Collectives& c, Backend& backend, const DeviceContractOptions& options)
      : c_(c), backend_(backend), options_(options), ranks_(c.size()) {}

  Status enqueue() {
    SWAX_TRY(make_memory());
    for (int64_t round = 0; round < options_.rounds; ++round) SWAX_TRY(one(round));
    SWAX_TRY(backend_.sync(*comm_));
    return backend_.sync(*compute_);
  }

  std::string first_difference() const {
    const int me = c_.rank();
    for (int64_t round = 0; round < options_.rounds; ++round) {
      const Round r = draw_round(round, me, options_.elements_max);
      const int64_t* got = results() + round * full_elements();
      for (int64_t i = 0; i < r.count * ranks_; ++i) {
        const int from = static_cast<int>(i / r.count);
        const int to = r.kind == Kind::kExchange ? me : from;
        const int64_t want = element(round, from, to, i % r.count);
        if (got[i] == want) continue;
        return std::string(r.kind == Kind::kExchange ? "all_to_all" : "all_gather") + " round " +
               to_text(round) + " rank " + to_text(me) + " element " + to_text(i) + " of " +
               to_text(r.count * ranks_) + ": got " + to_text(got[i]) + ", want " + to_text(want);
      }
    }
    return {};
  }

 private:
  int64_t full_elements() const { return options_.elements_max * ranks_; }
  int64_t* results() const { return static_cast<int64_t*>(results_.data()); }
  static Tensor part(const Buffer& buffer, int64_t begin, int64_t count) {
    return Tensor::of(static_cast<int64_t*>(buffer.data()) + begin, DType::kI64, {count});
  }

  Status make_memory() {
    const int64_t full = full_elements() * 8;
    SWAX_ASSIGN(compute_, backend_.make_stream());
    SWAX_ASSIGN(comm_, backend_.make_stream());
    SWAX_ASSIGN(send_, c_.allocate(backend_, full));
    SWAX_ASSIGN(recv_, c_.allocate(backend_, full));
    SWAX_ASSIGN(delay_, backend_.allocate(options_.delay_bytes, MemoryKind::kDevice));
    SWAX_ASSIGN(poison_, backend_.allocate(full, MemoryKind::kPinned));
    SWAX_ASSIGN(inputs_, backend_.allocate(full * options_.rounds, MemoryKind::kPinned));
    SWAX_ASSIGN(results_, backend_.allocate(full * options_.rounds, MemoryKind::kPinned));
    std::fill_n(static_cast<int64_t*>(poison_.data()), full_elements(), int64_t{-1});
    std::fill_n(results(), full_elements() * options_.rounds, int64_t{-2});
    SWAX_TRY(c_.register_buffer(part(send_, 0, full_elements())));
    return c_.register_buffer(part(recv_, 0, full_elements()));
  }

  // What this rank sends in the round, as it lies in the send buffer.
  int64_t fill_input(int64_t round, const Round& r) {
    const int64_t count = r.kind == Kind::kExchange ? r.count * ranks_ : r.count;
    int64_t* input = static_cast<int64_t*>(inputs_.data()) + round * full_elements();
    for (int64_t i = 0; i < count; ++i) {
      const int to = r.kind == Kind::kExchange ? static_cast<int>(i / r.count) : c_.rank();
      input[i] = element(round, c_.rank(), to, i % r.count);
    }
    return count;
  }

  Status one(int64_t round) {
    const Round r = draw_round(round, c_.rank(), options_.elements_max);
    const bool in_place = r.kind == Kind::kGatherInPlace;
    const int64_t sent = fill_input(round, r), received = r.count * ranks_;
    const int64_t begin = in_place ? c_.rank() * r.count : 0;
    const Tensor mine = part(in_place ? recv_ : send_, begin, sent);
    const Tensor all = part(recv_, 0, received);
    const Tensor slow = Tensor::of(delay_.data(), DType::kF32, {options_.delay_bytes / 4});
    for (int i = 0; i < r.fills_before; ++i) {
      SWAX_TRY(backend_.fill(*compute_, {.x = slow, .value = 1.0F}));
    }
    SWAX_TRY(backend_.copy(*compute_, mine, part(inputs_, round * full_elements(), sent)));
    backend_.wait(*comm_, backend_.record(*compute_));
    SWAX_ASSIGN(const Event done, r.kind == Kind::kExchange ? c_.all_to_all(*comm_, mine, all)
                                                            : c_.all_gather(*comm_, mine, all));
    backend_.wait(*compute_, done);
    SWAX_TRY(backend_.copy(*compute_, part(results_, round * full_elements(), received), all));
    SWAX_TRY(backend_.copy(*compute_, part(send_, 0, full_elements()),
                           part(poison_, 0, full_elements())));
    return backend_.copy(*compute_, part(recv_, 0, full_elements()),
                         part(poison_, 0, full_elements()));
  }

  Collectives& c_;
  Backend& backend_;
  DeviceContractOptions options_;
  int ranks_;
  Buffer send_, recv_, delay_, poison_, inputs_, results_;
  std::unique_ptr<Stream> compute_, comm_;  // go before the memory that they use
};

}  // namespace

std::string device_contract(Collectives& c, Backend& backend,
                            const DeviceContractOptions& options) {
  DeviceContract contract(c, backend, options);
  const Status enqueued = contract.enqueue();
  if (!enqueued.ok()) return "rank " + to_text(c.rank()) + ": " + enqueued.to_string();
  const std::string bad = contract.first_difference();
  // Nobody frees memory that another's work may still read.
  const Status end = c.barrier();
  return !bad.empty() || end.ok() ? bad : "barrier: " + end.to_string();
}

}  // namespace swax::test
