#include "jobs/data_order.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "proto/base/check.h"
#include "proto/base/hash.h"
#include "proto/base/rng.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int kFeistelRounds = 6;
constexpr int kDomainBitsMin = 16;  // shorter halves give visibly regular permutations

struct FeistelDomain {
  int half_bits;
  uint64_t mask;  // of one half
};

FeistelDomain feistel_domain(uint64_t n) {
  const int bits = std::max(kDomainBitsMin, static_cast<int>(std::bit_width(n - 1)));
  const int half = (bits + 1) / 2;
  return {half, (uint64_t{1} << half) - 1};
}

uint64_t round_value(uint64_t key, int round, uint64_t half) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  return mix_bits(mix_bits(key + kGolden * static_cast<uint64_t>(round + 1)) ^ half);
}

uint64_t encrypt(uint64_t key, const FeistelDomain& domain, uint64_t value) {
  uint64_t left = value >> domain.half_bits;
  uint64_t right = value & domain.mask;
  for (int round = 0; round < kFeistelRounds; ++round) {
    const uint64_t mixed = (left ^ round_value(key, round, right)) & domain.mask;
    left = right;
    right = mixed;
  }
  return left << domain.half_bits | right;
}

uint64_t decrypt(uint64_t key, const FeistelDomain& domain, uint64_t value) {
  uint64_t left = value >> domain.half_bits;
  uint64_t right = value & domain.mask;
  for (int round = kFeistelRounds - 1; round >= 0; --round) {
    const uint64_t mixed = (right ^ round_value(key, round, left)) & domain.mask;
    right = left;
    left = mixed;
  }
  return left << domain.half_bits | right;
}

uint64_t epoch_key(uint64_t seed, int source, int64_t epoch) {
  const PhiloxBlock block = random_block(seed, Purpose::kDataOrder, static_cast<uint64_t>(epoch),
                                         static_cast<uint32_t>(source));
  return static_cast<uint64_t>(block[1]) << 32 | block[0];
}

// Largest remainders, each source at least 1; ties go to the earlier source.
Result<std::vector<int64_t>> integer_weights(const pb::JobSpec& spec) {
  double sum = 0.0;
  for (const pb::DataSource& source : spec.data().sources()) sum += source.weight();
  if (!(sum > 0.0) || !std::isfinite(sum))
    return invalid_argument("data.sources: weights must be finite and > 0");
  std::vector<int64_t> weights;
  std::vector<double> wanted;
  int64_t given = 0;
  for (const pb::DataSource& source : spec.data().sources()) {
    wanted.push_back(source.weight() / sum * static_cast<double>(kMixPeriod));
    weights.push_back(std::max<int64_t>(1, static_cast<int64_t>(wanted.back())));
    given += weights.back();
  }
  const auto missing = [&](size_t s) { return wanted[s] - static_cast<double>(weights[s]); };
  for (; given != kMixPeriod; given += given < kMixPeriod ? 1 : -1) {
    size_t best = 0;
    for (size_t s = 1; s < weights.size(); ++s) {
      const bool better = given < kMixPeriod ? missing(s) > missing(best)
                                             : weights[s] > 1 && missing(s) < missing(best);
      if (better || (given > kMixPeriod && weights[best] == 1)) best = s;
    }
    weights[best] += given < kMixPeriod ? 1 : -1;
  }
  return weights;
}

// Position t goes to the source that lags most behind its share: the largest
// (t + 1) * w - period * count. A source is never picked above its share, so the counts come out
// exact.
std::vector<int> mix_period(const std::vector<int64_t>& weights) {
  std::vector<int64_t> count(weights.size(), 0);
  std::vector<int> period;
  for (int64_t t = 0; t < kMixPeriod; ++t) {
    const auto deficit = [&](size_t s) { return (t + 1) * weights[s] - kMixPeriod * count[s]; };
    size_t best = 0;
    for (size_t s = 1; s < weights.size(); ++s) {
      if (deficit(s) > deficit(best)) best = s;
    }
    ++count[best];
    period.push_back(static_cast<int>(best));
  }
  return period;
}

}  // namespace

uint64_t feistel(uint64_t key, uint64_t n, uint64_t index) {
  SWAX_CHECK(index < n);
  if (n == 1) return 0;
  const FeistelDomain domain = feistel_domain(n);
  uint64_t value = encrypt(key, domain, index);
  while (value >= n) value = encrypt(key, domain, value);  // cycle walking: returns to [0, n)
  return value;
}

uint64_t feistel_inverse(uint64_t key, uint64_t n, uint64_t value) {
  SWAX_CHECK(value < n);
  if (n == 1) return 0;
  const FeistelDomain domain = feistel_domain(n);
  uint64_t index = decrypt(key, domain, value);
  while (index >= n) index = decrypt(key, domain, index);
  return index;
}

SampleRef DataOrder::at(uint64_t g) const {
  const uint64_t turn = g / static_cast<uint64_t>(kMixPeriod);
  const size_t place = static_cast<size_t>(g % static_cast<uint64_t>(kMixPeriod));
  const int source = period_[place];
  const size_t s = static_cast<size_t>(source);
  const uint64_t ordinal =
      turn * static_cast<uint64_t>(per_period_[s]) + static_cast<uint64_t>(rank_in_period_[place]);
  const uint64_t n = static_cast<uint64_t>(windows_[s]);
  SampleRef ref;
  ref.source = source;
  ref.epoch = static_cast<int64_t>(ordinal / n);
  const uint64_t index = ordinal % n;
  ref.window = static_cast<int64_t>(
      permute_ ? feistel(epoch_key(seed_, source, ref.epoch), n, index) : index);
  return ref;
}

Result<DataOrder> make_data_order(const pb::JobSpec& spec,
                                  const std::vector<int64_t>& train_tokens) {
  const size_t sources = static_cast<size_t>(spec.data().sources_size());
  if (sources == 0) return invalid_argument("data.sources: is empty");
  if (sources > static_cast<size_t>(kMixPeriod))
    return invalid_argument("data.sources: more than " + to_text(kMixPeriod));
  if (train_tokens.size() != sources)
    return invalid_argument("data.sources: " + to_text(static_cast<int64_t>(sources)) +
                            " sources, sizes of " +
                            to_text(static_cast<int64_t>(train_tokens.size())));
  const int64_t seq_len = spec.training().seq_len();
  if (seq_len < 1) return invalid_argument("training.seq_len=0: must be >= 1");
  DataOrder order;
  order.seed_ = spec.job().seed();
  order.permute_ = spec.data().shuffle() != "none";
  for (size_t s = 0; s < sources; ++s) {
    if (train_tokens[s] < seq_len + 1)
      return invalid_argument("data.sources." + spec.data().sources(static_cast<int>(s)).name() +
                              ": " + to_text(train_tokens[s]) + " training tokens, seq_len=" +
                              to_text(seq_len) + " needs " + to_text(seq_len + 1));
    order.windows_.push_back((train_tokens[s] - 1) / seq_len);
  }
  SWAX_ASSIGN(order.per_period_, integer_weights(spec));
  order.period_ = mix_period(order.per_period_);
  std::vector<int64_t> count(sources, 0);
  for (const int source : order.period_)
    order.rank_in_period_.push_back(count[static_cast<size_t>(source)]++);
  return order;
}

}  // namespace swax
