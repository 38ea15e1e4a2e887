// Counter-based random numbers: a value is a pure function of (key, counter); no generator state exists anywhere.
// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11. Golden vectors in the test.
// Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>

namespace swax {

using PhiloxBlock = std::array<uint32_t, 4>;

// Ten rounds of Philox4x32 on `counter` with the 64-bit `key` (low word first).
PhiloxBlock philox4x32(uint64_t key, PhiloxBlock counter);

// Purposes keep streams of one seed apart (third counter word).
enum class Purpose : uint32_t {
  kWindow = 0x58415753,  // "SWAX" little-endian, model-spec 1.4
  kInit = 2,
  kDataOrder = 3,
  kSample = 4,           // text generation
  kTest = 5,
};

// Counter (lo(index), hi(index), purpose, lane) under key `seed`.
PhiloxBlock random_block(uint64_t seed, Purpose purpose, uint64_t index, uint32_t lane = 0);

// Uniform double in (0, 1]: (word + 1) * 2^-32.
double unit_open_closed(uint32_t word);

// Standard normal number `element` of the stream `stream` (a hash of the tensor name) under `seed`: Box-Muller on our
// own log and sincos, so the bits do not depend on the C library. A value depends on nothing but its arguments.
float normal_at(uint64_t seed, uint64_t stream, uint64_t element);

}  // namespace swax
