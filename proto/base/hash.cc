#include "proto/base/hash.h"

#include "proto/base/text.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace swax {
namespace {

void append_hex(std::string& out, uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[(value >> shift) & 15];
}

bool parse_hex(std::string_view digits, uint64_t& value) {
  value = 0;
  for (const char c : digits) {
    uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a') + 10;
    } else {
      return false;
    }
    value = value << 4 | digit;
  }
  return true;
}

Hash128 from_xxh(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

}  // namespace

std::string Hash128::hex() const {
  std::string text;
  text.reserve(32);
  append_hex(text, high);
  append_hex(text, low);
  return text;
}

Result<Hash128> parse_hash128(std::string_view hex) {
  Hash128 hash;
  if (hex.size() != 32 || !parse_hex(hex.substr(0, 16), hash.high) ||
      !parse_hex(hex.substr(16), hash.low)) {
    return invalid_argument("hash=\"" + printable(hex) + "\": must be 32 lower-case hex digits");
  }
  return hash;
}

uint64_t xxh3_64(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }
uint64_t xxh3_64(std::string_view text) { return xxh3_64(text.data(), text.size()); }
Hash128 xxh3_128(const void* data, size_t bytes) { return from_xxh(XXH3_128bits(data, bytes)); }
Hash128 xxh3_128(std::string_view text) { return xxh3_128(text.data(), text.size()); }

struct Hasher128::State {
  XXH3_state_t xxh;
};

Hasher128::Hasher128() : state_(std::make_unique<State>()) {
  SWAX_CHECK(XXH3_128bits_reset(&state_->xxh) == XXH_OK);
}
Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::update(const void* data, size_t bytes) {
  if (bytes == 0) return;  // an empty view may hold a null pointer
  SWAX_CHECK(XXH3_128bits_update(&state_->xxh, data, bytes) == XXH_OK);
}

Hash128 Hasher128::digest() const { return from_xxh(XXH3_128bits_digest(&state_->xxh)); }

}  // namespace swax
