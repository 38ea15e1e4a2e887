// Goal: every window of a source comes once per epoch, mixtures are exact per period, and the order
// never changes. Method: exhaustive checks for small sizes, golden vectors made by a second
// implementation.
#include "jobs/data_order.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/jobs/job_specs.h"

namespace swax {
namespace {

pb::JobSpec spec_of(const std::vector<double>& weights, uint32_t seq_len = 10, uint64_t seed = 1) {
  pb::JobSpec spec;
  spec.mutable_job()->set_seed(seed);
  spec.mutable_training()->set_seq_len(seq_len);
  spec.mutable_data()->set_shuffle("permute");
  for (size_t s = 0; s < weights.size(); ++s) {
    pb::DataSource* source = spec.mutable_data()->add_sources();
    source->set_name("s" + std::to_string(s));
    source->set_weight(weights[s]);
  }
  return spec;
}

DataOrder order_of(const pb::JobSpec& spec, const std::vector<int64_t>& tokens) {
  auto order = make_data_order(spec, tokens);
  EXPECT_TRUE(order.ok()) << order.status().to_string();
  return *order;
}

TEST(Feistel, IsABijectionWithAnInverse) {
  for (const uint64_t n :
       {1, 2, 3, 5, 16, 255, 256, 257, 1000, 4096, 65535, 65536, 65537, 100'000}) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{42}, ~uint64_t{0}}) {
      if (n < 256 && key != 42) continue;  // few values: long cycle walks
      std::vector<bool> seen(n, false);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t value = feistel(key, n, i);
        ASSERT_LT(value, n);
        ASSERT_FALSE(seen[value]) << n << " " << i;
        seen[value] = true;
        if (i % 7 == 0 || n < 300) {
          ASSERT_EQ(feistel_inverse(key, n, value), i);
        }
      }
    }
  }
}

TEST(Feistel, InvertsInLargeDomains) {
  for (const uint64_t n : {uint64_t{1} << 32, (uint64_t{1} << 40) + 12345, ~uint64_t{0}}) {
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t index = n / 1000 * i;
      EXPECT_EQ(feistel_inverse(i, n, feistel(i, n, index)), index);
    }
  }
}

TEST(Feistel, GoldenVectors) {
  struct Golden {
    uint64_t key, n;
    std::vector<uint64_t> values;  // at 0, 1, min(n - 1, 2), n - 1
  };
  const std::vector<Golden> golden = {
      {0, 2, {1, 0, 0, 0}},
      {1, 3, {1, 2, 0, 0}},
      {42, 100, {75, 93, 76, 94}},
      {42, 65536, {28241, 27031, 30936, 9782}},
      {7, 65537, {26879, 49732, 54511, 14926}},
      {81985529216486895, 1000000, {928993, 197937, 573056, 225707}},
      {5, 1000000000000, {921697307681, 476108620353, 476628458532, 396706780752}}};
  for (const Golden& g : golden) {
    const std::vector<uint64_t> at = {0, 1, std::min<uint64_t>(g.n - 1, 2), g.n - 1};
    for (size_t i = 0; i < at.size(); ++i)
      EXPECT_EQ(feistel(g.key, g.n, at[i]), g.values[i]) << g.n;
  }
}

// A permutation keeps no order: for n = 10,000 neighbours stay neighbours about 2 times by chance,
// the count is Poisson-like.
TEST(Feistel, SeparatesNeighbours) {
  int close = 0;
  for (uint64_t i = 0; i + 1 < 10'000; ++i) {
    const int64_t step = static_cast<int64_t>(feistel(3, 10'000, i + 1)) -
                         static_cast<int64_t>(feistel(3, 10'000, i));
    close += std::abs(step) == 1;
  }
  EXPECT_LT(close, 12);
}

TEST(DataOrder, EveryWindowOncePerEpoch) {
  for (const int64_t windows : {1, 2, 3, 37, 300}) {
    const DataOrder order = order_of(spec_of({1.0}), {windows * 10 + 5});
    ASSERT_EQ(order.windows(0), windows);
    uint64_t g = 0;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < windows; ++i, ++g) {
        const SampleRef ref = order.at(g);
        EXPECT_EQ(ref.source, 0);
        EXPECT_EQ(ref.epoch, epoch);
        EXPECT_TRUE(ref.window >= 0 && ref.window < windows);
        EXPECT_TRUE(seen.insert(ref.window).second);
      }
    }
  }
}

TEST(DataOrder, EpochsAndSeedsAndSourcesDiffer) {
  const auto windows_of = [](uint64_t seed, int source, int64_t epoch) {
    const DataOrder order = order_of(spec_of({1.0, 1.0}, 10, seed), {1001, 1001});
    std::vector<int64_t> list;
    for (uint64_t g = 0; list.size() < 100; ++g) {
      const SampleRef ref = order.at(g);
      if (ref.source == source && ref.epoch == epoch) list.push_back(ref.window);
    }
    return list;
  };
  const auto base = windows_of(1, 0, 0);
  EXPECT_NE(base, windows_of(1, 0, 1));
  EXPECT_NE(base, windows_of(2, 0, 0));
  EXPECT_NE(base, windows_of(1, 1, 0));
  EXPECT_EQ(base, windows_of(1, 0, 0));
}

TEST(DataOrder, MixtureIsExactInEveryPeriod) {
  const std::vector<double> weights = {0.7, 0.2, 0.1, 1e-6};
  const DataOrder order = order_of(spec_of(weights), {10'001, 501, 101, 31});
  std::vector<int64_t> count(weights.size(), 0);
  for (const int source : order.period()) ++count[static_cast<size_t>(source)];
  ASSERT_EQ(static_cast<int64_t>(order.period().size()), kMixPeriod);
  for (size_t s = 0; s < 3; ++s) EXPECT_NEAR(static_cast<double>(count[s]), weights[s] * 4096, 1.0);
  EXPECT_EQ(count[3], 1);  // no source is forgotten
  // Every prefix stays within one sample (and the share moved to the forced 1) of its due.
  std::vector<int64_t> so_far(weights.size(), 0);
  for (int64_t t = 0; t < kMixPeriod; ++t) {
    ++so_far[static_cast<size_t>(order.period()[static_cast<size_t>(t)])];
    for (size_t s = 0; s < weights.size(); ++s) {
      const double due = static_cast<double>(count[s] * (t + 1)) / 4096;
      ASSERT_LE(std::abs(static_cast<double>(so_far[s]) - due), 3.0);
    }
  }
  // Ordinals of a source go on from period to period without a gap.
  std::map<std::pair<int, int64_t>, std::set<int64_t>> seen;
  for (uint64_t g = 0; g < 3 * static_cast<uint64_t>(kMixPeriod); ++g) {
    const SampleRef ref = order.at(g);
    ASSERT_TRUE((seen[{ref.source, ref.epoch}].insert(ref.window).second));
  }
  for (const auto& [key, windows] : seen) {
    const auto next = seen.find({key.first, key.second + 1});
    if (next != seen.end()) {
      EXPECT_EQ(static_cast<int64_t>(windows.size()), order.windows(key.first));
    }
  }
}

TEST(DataOrder, SixtyFourSourcesWithExtremeWeights) {
  std::vector<double> weights(64, 1e-3);
  weights[10] = 1e6;
  const DataOrder order = order_of(spec_of(weights), std::vector<int64_t>(64, 1000));
  std::vector<int64_t> count(64, 0);
  for (const int source : order.period()) ++count[static_cast<size_t>(source)];
  for (size_t s = 0; s < 64; ++s) EXPECT_EQ(count[s], s == 10 ? 4096 - 63 : 1);
}

TEST(DataOrder, GoldenSamples) {
  const DataOrder order = order_of(spec_of({3.0, 1.0}), {10'001, 375});
  ASSERT_EQ(order.windows(0), 1000);
  ASSERT_EQ(order.windows(1), 37);
  struct Golden {
    uint64_t g;
    int source;
    int64_t epoch, window;
  };
  const std::vector<Golden> golden = {{0, 0, 0, 407},    {1, 0, 0, 894},        {2, 1, 0, 18},
                                      {3, 0, 0, 859},    {4, 0, 0, 643},        {5, 0, 0, 538},
                                      {6, 1, 0, 30},     {7, 0, 0, 123},        {4096, 0, 3, 383},
                                      {4097, 0, 3, 885}, {1000003, 0, 750, 729}};
  for (const Golden& want : golden) {
    const SampleRef ref = order.at(want.g);
    EXPECT_EQ(ref.source, want.source) << want.g;
    EXPECT_EQ(ref.epoch, want.epoch) << want.g;
    EXPECT_EQ(ref.window, want.window) << want.g;
  }
}

TEST(DataOrder, WithoutShuffleWindowsComeInOrder) {
  pb::JobSpec spec = spec_of({1.0});
  spec.mutable_data()->set_shuffle("none");
  const DataOrder order = order_of(spec, {51});
  for (uint64_t g = 0; g < 12; ++g) EXPECT_EQ(order.at(g).window, static_cast<int64_t>(g % 5));
}

TEST(DataOrder, AWindowNeedsItsTargets) {
  const pb::JobSpec spec = spec_of({1.0});
  EXPECT_EQ(order_of(spec, {11}).windows(0), 1);
  EXPECT_EQ(order_of(spec, {20}).windows(0), 1);
  EXPECT_EQ(order_of(spec, {21}).windows(0), 2);
  const auto short_source = make_data_order(spec, {10});
  ASSERT_FALSE(short_source.ok());
  EXPECT_EQ(short_source.status().code(), Code::kInvalidArgument);
  EXPECT_NE(short_source.status().message().find("s0"), std::string::npos);
  EXPECT_FALSE(make_data_order(spec, {100, 100}).ok());
  EXPECT_FALSE(make_data_order(spec_of({}), {}).ok());
}

}  // namespace
}  // namespace swax
