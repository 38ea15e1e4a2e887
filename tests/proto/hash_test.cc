// Goal: hashes keep their bits, since they stand in files. Method: vectors of the xxHash C library
// (lengths on both sides of each of its internal limits) and mixers recomputed in Python integers.
#include "proto/base/hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace swax {
namespace {

struct Golden {
  size_t bytes;
  uint64_t xxh64;
  const char* xxh128;
};
constexpr Golden kGolden[] = {
    {0, 0x2d06800538d394c2ULL, "99aa06d3014798d86001c324468d497f"},
    {1, 0x4c5cca45d0f4811fULL, "495b62073ef70ca44c5cca45d0f4811f"},
    {3, 0x6e3e2670e61106acULL, "390cdc5b4a895dd76e3e2670e61106ac"},
    {4, 0x5c4c63133443d03fULL, "aa6e2f274640a3f43d668af6f2a44d77"},
    {8, 0xf9fd4dd0b04d78f5ULL, "6a86a3bda6af4e3d61ddbe7f31a6100d"},
    {9, 0x7c20df9712c26edfULL, "664c7ca18afd62558c7b67fd458a936b"},
    {16, 0x86abf6baccea0858ULL, "7f9a218b0425449ae2ce54a7c19c730d"},
    {17, 0xb58bf5dc5022d071ULL, "66fc23f6439dbd778d96ef110fcdebb4"},
    {128, 0x10d17f72c0ccba41ULL, "aec730751478556cff361dec1385710a"},
    {129, 0x1648bdc3db49d1a2ULL, "98cd36ccbb5579264545b3a09738e31a"},
    {240, 0xb6cfaf343fab81e6ULL, "5293e17bf553903d3f2c53e72293711f"},
    {241, 0x956cae592c67279eULL, "b53840fe3fedf161956cae592c67279e"},
    {1024, 0x70bd377d9574f4bbULL, "f69630613f24324d70bd377d9574f4bb"},
    {1025, 0x66c4487c41e127a7ULL, "621af7b8277effa466c4487c41e127a7"},
    {5000, 0xe4007929540f095cULL, "61bedb627e4a5fdfe4007929540f095c"},
};

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 131 + 7) % 256);
  return text;
}

TEST(Xxh3, GoldenVectors) {
  for (const Golden& g : kGolden) {
    const std::string data = pattern(g.bytes);
    EXPECT_EQ(xxh3_64(data), g.xxh64) << g.bytes;
    EXPECT_EQ(xxh3_128(data).hex(), g.xxh128) << g.bytes;
  }
  EXPECT_EQ(xxh3_64("swax"), 0x302d4427288c2b0fULL);
  EXPECT_EQ(xxh3_128("swax").hex(), "1ac6b562918f5666df377f3d91f75c92");
}

TEST(Xxh3, EmptyViewWithoutStorage) {
  EXPECT_EQ(xxh3_64(std::string_view()), kGolden[0].xxh64);
  EXPECT_EQ(xxh3_128(nullptr, 0).hex(), kGolden[0].xxh128);
}

TEST(Hasher128, PiecesEqualTheWhole) {
  for (const Golden& g : kGolden) {
    const std::string data = pattern(g.bytes);
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{256}, size_t{4096}}) {
      Hasher128 hasher;
      for (size_t i = 0; i < data.size(); i += piece) {
        hasher.update(std::string_view(data).substr(i, piece));
      }
      hasher.update(std::string_view());
      EXPECT_EQ(hasher.digest().hex(), g.xxh128) << g.bytes << " by " << piece;
    }
  }
}

TEST(Hasher128, DigestDoesNotEndTheStreamAndMoves) {
  Hasher128 hasher;
  hasher.update("sw");
  EXPECT_EQ(hasher.digest(), xxh3_128("sw"));
  Hasher128 moved = std::move(hasher);
  moved.update("ax");
  EXPECT_EQ(moved.digest(), xxh3_128("swax"));
}

TEST(Hash128, HexRoundTripAndOrder) {
  const Hash128 hash{0x0123456789abcdefULL, 0x00000000000000f0ULL};
  EXPECT_EQ(hash.hex(), "0123456789abcdef00000000000000f0");
  EXPECT_EQ(*parse_hash128(hash.hex()), hash);
  EXPECT_LT((Hash128{1, 9}), (Hash128{2, 0}));
}

TEST(Hash128, ParseRejects) {
  for (const std::string& bad :
       {std::string(), std::string(31, '0'), std::string(33, '0'), std::string(32, 'A'),
        std::string(31, '0') + "g", " " + std::string(31, '0'), "0x" + std::string(30, '0')}) {
    const auto result = parse_hash128(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  }
}

TEST(MixBits, GoldenVectors) {
  EXPECT_EQ(mix_bits(0), 0U);
  EXPECT_EQ(mix_bits(1), 0x5692161d100b05e5ULL);
  EXPECT_EQ(mix_bits(0x9e3779b97f4a7c15ULL), 0xe220a8397b1dcdafULL);  // splitmix64, seed 0
  EXPECT_EQ(mix_bits(~uint64_t{0}), 0xb4d055fcf2cbbd7bULL);
}

TEST(DigestMix, GoldenVectors) {
  struct Mix {
    int k;
    uint64_t name;
    uint64_t element;
    uint32_t bits;
    uint64_t value;
  };
  constexpr uint64_t kName = 0xde1d30bf0b304718ULL;
  ASSERT_EQ(xxh3_64("layers.3.mlstm.wq"), kName);
  constexpr Mix kMixes[] = {
      {0, 0, 0, 0, 0x0397ab29740681d9ULL},
      {0, kName, 0, 0x3f800000, 0xca1bb3d6810c3e39ULL},
      {0, kName, 1, 0x3f800000, 0xa7dba0e4d8e1726dULL},
      {0, kName, uint64_t{1} << 40, 0x80000000, 0x495b2676bfcb6f4aULL},
      {1, 0, 0, 0, 0x6ef393ad4c89cad0ULL},
      {1, kName, 0, 0x3f800000, 0x6a3bcd5e817e0433ULL},
      {1, kName, 1, 0x3f800000, 0xe42b0f6b91108e0aULL},
      {1, kName, uint64_t{1} << 40, 0x80000000, 0x43b7e42d7a78382fULL},
  };
  for (const Mix& m : kMixes) {
    EXPECT_EQ(digest_mix(m.k, m.name, m.element, m.bits), m.value)
        << m.k << " " << m.name << " " << m.element << " " << m.bits;
  }
}

// What the digest is for: a single flipped bit, two exchanged elements, or +0 for -0 all show.
TEST(DigestMix, SumsSeeSmallChanges) {
  const auto sum = [](int k, const std::vector<uint32_t>& bits) {
    uint64_t total = 0;
    for (size_t i = 0; i < bits.size(); ++i) total += digest_mix(k, 99, i, bits[i]);
    return total;
  };
  const std::vector<uint32_t> base = {0x3f800000, 0x40000000, 0, 0x40000000};
  for (const int k : {0, 1}) {
    for (size_t i = 0; i < base.size(); ++i) {
      for (int bit = 0; bit < 32; ++bit) {
        std::vector<uint32_t> changed = base;
        changed[i] ^= uint32_t{1} << bit;
        EXPECT_NE(sum(k, base), sum(k, changed)) << i << " " << bit;
      }
    }
    std::vector<uint32_t> exchanged = base;
    std::swap(exchanged[0], exchanged[1]);
    EXPECT_NE(sum(k, base), sum(k, exchanged));
  }
}

}  // namespace
}  // namespace swax
