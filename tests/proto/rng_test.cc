// Goal: random numbers keep their bits for ever and are normal where they say so.
// Method: published Philox vectors, values computed once in 400-bit arithmetic, and moments of
// 1e5 normals within 5 standard errors of the true ones.
#include "proto/base/rng.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace swax {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};

// Random123 (D. E. Shaw Research), kat_vectors, philox4x32 with 10 rounds.
TEST(Philox, PublishedVectors) {
  EXPECT_EQ(philox4x32(0, {0, 0, 0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(kAll, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(0x299f31d0a4093822ULL, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomBlock, PlacesIndexPurposeAndLane) {
  EXPECT_EQ(random_block(42, Purpose::kWindow, 7),
            (PhiloxBlock{0x5481810b, 0x16ae25bb, 0xd7caf3b9, 0xce4b847a}));
  EXPECT_EQ(random_block(42, Purpose::kDataOrder, 0x0123456789abcdefULL, 5),
            (PhiloxBlock{0xdb376bbc, 0xd2f6dbf6, 0xded5a623, 0x26dbc052}));
}

TEST(UnitOpenClosed, EndsOfTheRange) {
  EXPECT_EQ(unit_open_closed(0), 0x1p-32);
  EXPECT_EQ(unit_open_closed(0x7fffffff), 0.5);
  EXPECT_EQ(unit_open_closed(0xffffffff), 1.0);
}

TEST(Normal, GoldenBits) {
  struct Golden {
    uint64_t seed;
    uint64_t stream;
    uint64_t element;
    uint32_t bits;
  };
  constexpr uint64_t kName = 0xde1d30bf0b304718ULL;  // xxh3_64("layers.3.mlstm.wq")
  constexpr Golden kGolden[] = {
      {0, 0, 0, 0xbf20920e},
      {0, 0, 1, 0xc02934c5},
      {1, 0, 0, 0x3fe9d12e},
      {42, kName, 0, 0xbff292cc},
      {42, kName, 1, 0x3f508b84},
      {42, kName, 2, 0xbf6f50f0},
      {42, kName, 12345678901ULL, 0x3ee65d82},
      {kAll, kAll, kAll, 0x3e872f30},
  };
  for (const Golden& g : kGolden) {
    EXPECT_EQ(std::bit_cast<uint32_t>(normal_at(g.seed, g.stream, g.element)), g.bits)
        << "seed " << g.seed << " stream " << g.stream << " element " << g.element;
  }
}

// Moments of n standard normals: var(mean) = 1/n, var(m2) = 2/n, var(m3) = 15/n, var(m4) = 96/n;
// covariance of neighbours has variance 1/n. 5 sigma with fixed seeds: a pass is a fact.
TEST(Normal, MomentsWithinFiveSigma) {
  constexpr int kCount = 100'000;
  const double sigma = 1.0 / std::sqrt(static_cast<double>(kCount));
  for (const uint64_t stream : {uint64_t{0}, uint64_t{1}, uint64_t{0xde1d30bf0b304718}}) {
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, pair = 0, step = 0, before = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      const double x = normal_at(7, stream, i);
      m1 += x;
      m2 += x * x;
      m3 += x * x * x;
      m4 += x * x * x * x;
      (i % 2 == 1 ? pair : step) += x * before;
      before = x;
    }
    EXPECT_LT(std::abs(m1 / kCount), 5 * sigma) << stream;
    EXPECT_LT(std::abs(m2 / kCount - 1), 5 * std::sqrt(2.0) * sigma) << stream;
    EXPECT_LT(std::abs(m3 / kCount), 5 * std::sqrt(15.0) * sigma) << stream;
    EXPECT_LT(std::abs(m4 / kCount - 3), 5 * std::sqrt(96.0) * sigma) << stream;
    EXPECT_LT(std::abs(pair / (kCount / 2)), 5 * std::sqrt(2.0) * sigma) << stream;
    EXPECT_LT(std::abs(step / (kCount / 2)), 5 * std::sqrt(2.0) * sigma) << stream;
  }
}

// P(|x| > t) for t = 1, 2, 3, each share within 5 sigma of a binomial.
TEST(Normal, TailsWithinFiveSigma) {
  constexpr int kCount = 100'000;
  for (const double t : {1.0, 2.0, 3.0}) {
    const double share = std::erfc(t / std::sqrt(2.0));
    int hits = 0;
    for (uint64_t i = 0; i < kCount; ++i) hits += std::abs(normal_at(11, 3, i)) > t ? 1 : 0;
    EXPECT_LT(std::abs(hits - kCount * share), 5 * std::sqrt(kCount * share * (1 - share))) << t;
  }
}

TEST(Normal, StreamsAndSeedsDiffer) {
  int equal = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    equal += normal_at(1, 2, i) == normal_at(1, 3, i) ? 1 : 0;
    equal += normal_at(1, 2, i) == normal_at(2, 2, i) ? 1 : 0;
  }
  EXPECT_LE(equal, 1);
}

}  // namespace
}  // namespace swax
