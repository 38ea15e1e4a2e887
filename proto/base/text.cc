#include "proto/base/text.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "proto/base/check.h"

namespace swax {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

template <typename T>
std::string integer_text(T value) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
  SWAX_CHECK(end.ec == std::errc{});
  return {buffer, end.ptr};
}

template <typename T>
std::string float_text(T value) {
  if (std::isnan(value)) return "nan";  // to_chars would show the sign of a NaN
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
  SWAX_CHECK(end.ec == std::errc{});
  return {buffer, end.ptr};
}

std::string hex_text(uint64_t bits, int digits) {
  std::string text(static_cast<size_t>(digits), '0');
  for (int i = digits - 1; i >= 0; --i, bits >>= 4)
    text[static_cast<size_t>(i)] = kHexDigits[bits & 15];
  return text;
}

std::string two_digits(uint64_t value) { return (value < 10 ? "0" : "") + to_text(value); }

uint64_t magnitude(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 if there is none.
// Table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
size_t utf8_length(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (at(1) < low || at(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

bool is_control(std::string_view sequence) {
  const unsigned char first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7F;
  // U+0080 to U+009F: terminals obey these too.
  return sequence.size() == 2 && first == 0xC2 && static_cast<unsigned char>(sequence[1]) < 0xA0;
}

}  // namespace

std::string to_text(int64_t value) { return integer_text(value); }
std::string to_text(uint64_t value) { return integer_text(value); }
std::string to_text(double value) { return float_text(value); }
std::string to_text(float value) { return float_text(value); }

std::string fixed_text(double value, int digits) {
  if (std::isnan(value)) return "nan";
  char buffer[512];  // 309 digits before the point, at most 100 after it
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed,
                                 std::clamp(digits, 0, 100));
  SWAX_CHECK(end.ec == std::errc{});
  return {buffer, end.ptr};
}

std::string hex_bits(double value) { return hex_text(std::bit_cast<uint64_t>(value), 16); }
std::string hex_bits(float value) { return hex_text(std::bit_cast<uint32_t>(value), 8); }

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
  const std::string sign = bytes < 0 ? "-" : "";
  double value = static_cast<double>(magnitude(bytes));
  if (value < 1024) return sign + to_text(magnitude(bytes)) + kUnits[0];
  int unit = 0;
  while (value >= 1023.995 && unit < 6) {  // what would print as 1024.00 belongs to the next unit
    value /= 1024;
    ++unit;
  }
  return sign + fixed_text(value, 2) + kUnits[unit];
}

std::string duration_text(int64_t ms) {
  const std::string sign = ms < 0 ? "-" : "";
  const uint64_t total_ms = magnitude(ms);
  const uint64_t s = total_ms / 1000;
  if (s < 1) return sign + to_text(total_ms) + "ms";
  if (s < 60) return sign + to_text(s) + "." + to_text(total_ms / 100 % 10) + "s";
  const std::string seconds = two_digits(s % 60) + "s";
  if (s < 3600) return sign + to_text(s / 60) + "m " + seconds;
  const std::string minutes = two_digits(s / 60 % 60) + "m ";
  if (s < 86400) return sign + to_text(s / 3600) + "h " + minutes + seconds;
  return sign + to_text(s / 86400) + "d " + two_digits(s / 3600 % 24) + "h " + minutes + seconds;
}

std::string group_digits(int64_t value) {
  const std::string digits = to_text(magnitude(value));
  std::string text = value < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

bool valid_utf8(std::string_view text, size_t* bad_offset) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text.substr(i));
    if (length == 0) {
      if (bad_offset != nullptr) *bad_offset = i;
      return false;
    }
    i += length;
  }
  return true;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const size_t at = text.find(separator);
    pieces.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return pieces;
    text.remove_prefix(at + 1);
  }
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, diagonal + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

std::string printable(std::string_view text, size_t max_bytes) {
  constexpr std::string_view kCut = "...";
  std::string out;
  size_t fits = 0;  // length up to which the cut mark still has room, at a piece boundary
  for (size_t i = 0; i < text.size();) {
    const size_t length = std::max<size_t>(utf8_length(text.substr(i)), 1);
    const std::string_view piece = text.substr(i, length);
    if (utf8_length(piece) == 0 || is_control(piece)) {
      for (const char c : piece) {
        const unsigned char byte = static_cast<unsigned char>(c);
        out += {'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
      }
    } else {
      out += piece;
    }
    if (out.size() > max_bytes) {
      out.resize(fits);
      return out.append(kCut.substr(0, max_bytes));
    }
    if (out.size() + kCut.size() <= max_bytes) fits = out.size();
    i += length;
  }
  return out;
}

}  // namespace swax
