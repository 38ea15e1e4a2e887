// Fixed-width integers and digests as bytes: little-endian in file headers, big-endian in keys (so
// that byte order is number order). A digest is stored in the order in which it is printed.
// Threads: pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "proto/base/hash.h"

namespace swax {

static_assert(std::endian::native == std::endian::little, "stored numbers are read by memcpy");

constexpr size_t kHashBytes = 16;

template <typename T>
void put_le(char* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

template <typename T>
T get_le(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void put_be(char* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<char>(value >> (8 * (sizeof(T) - 1 - i)));
  }
}

template <typename T>
T get_be(const char* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value << 8 | static_cast<uint8_t>(from[i]));
  }
  return value;
}

inline void put_hash(char* to, const Hash128& hash) {
  put_be(to, hash.high);
  put_be(to + 8, hash.low);
}

inline Hash128 get_hash(const char* from) {
  return {get_be<uint64_t>(from), get_be<uint64_t>(from + 8)};
}

}  // namespace swax
