// Hashes. The only door to xxhash. All values are part of file formats: golden vectors stand in the test.
// Threads: pure functions; Hasher128 is single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/status.h"

namespace swax {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Hash128&) const = default;
  std::string hex() const;  // 32 lower-case hex digits, high first
};
Result<Hash128> parse_hash128(std::string_view hex);

uint64_t xxh3_64(const void* data, size_t bytes);
uint64_t xxh3_64(std::string_view text);
Hash128 xxh3_128(const void* data, size_t bytes);
Hash128 xxh3_128(std::string_view text);

// Streaming XXH3-128 for data that does not lie in one piece.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;
  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Tensor digest: two sums modulo 2^64 over the elements of a tensor of mix_k(name_hash, element index, fp32 bits).
// The sums do not depend on the order of elements, so shards, threads and devices agree. Integer arithmetic only.
inline uint64_t mix_bits(uint64_t x) {  // finaliser of splitmix64 (Stafford variant 13)
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}
// k = 0 or 1 selects one of two independent mixers.
inline uint64_t digest_mix(int k, uint64_t name_hash, uint64_t element, uint32_t bits) {
  const uint64_t salt = k == 0 ? 0x9e3779b97f4a7c15ULL : 0xd1b54a32d192ed03ULL;
  return mix_bits(mix_bits(name_hash + salt * (element + 1)) ^ (uint64_t{bits} * 0xff51afd7ed558ccdULL + salt));
}

}  // namespace swax
