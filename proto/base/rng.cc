#include "proto/base/rng.h"

#include <cmath>

#include "proto/base/hash.h"
#include "proto/base/math.h"

namespace swax {

PhiloxBlock philox4x32(uint64_t key, PhiloxBlock counter) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * counter[0];
    const uint64_t p1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

PhiloxBlock random_block(uint64_t seed, Purpose purpose, uint64_t index, uint32_t lane) {
  return philox4x32(seed, {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                           static_cast<uint32_t>(purpose), lane});
}

double unit_open_closed(uint32_t word) { return (static_cast<double>(word) + 1.0) * 0x1p-32; }

// Elements 2k and 2k+1 are the cosine and the sine branch of one block, number k of the key
// mix_bits(seed + golden * stream). The stream enters the key because the 64-bit index fills two
// counter words and the purpose the third. With 32-bit words |value| <= sqrt(64 ln 2) = 6.66.
float normal_at(uint64_t seed, uint64_t stream, uint64_t element) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  const uint64_t key = mix_bits(seed + kGolden * stream);
  const PhiloxBlock block = random_block(key, Purpose::kInit, element / 2);
  const double radius = std::sqrt(-2.0 * math::log(unit_open_closed(block[0])));
  const math::SinCos turn = math::sincos(2.0 * math::kPi * unit_open_closed(block[1]));
  return static_cast<float>(radius * (element % 2 == 0 ? turn.cos : turn.sin));
}

}  // namespace swax
