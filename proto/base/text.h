// Numbers as text, locale-free (std::to_chars), and small text helpers. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace swax {

std::string to_text(int64_t value);
std::string to_text(uint64_t value);
inline std::string to_text(int value) { return to_text(static_cast<int64_t>(value)); }
std::string to_text(double value);              // shortest form that reads back to the same bits; "nan", "inf", "-inf"
std::string to_text(float value);
std::string fixed_text(double value, int digits);
std::string hex_bits(double value);             // 16 hex digits of the IEEE bits
std::string hex_bits(float value);              // 8 hex digits
std::string bytes_text(int64_t bytes);          // "1.50 GiB"
std::string duration_text(int64_t ms);          // "1h 02m 03s", "4.2s"
std::string group_digits(int64_t value);        // 1,439,492,192
bool valid_utf8(std::string_view text, size_t* bad_offset = nullptr);
std::vector<std::string_view> split(std::string_view text, char separator);
// Levenshtein distance; used to name the nearest known key.
int edit_distance(std::string_view a, std::string_view b);
// Printable form of untrusted text: control and non-UTF-8 bytes become \xNN, cut at max_bytes with "...".
std::string printable(std::string_view text, size_t max_bytes = 80);

}  // namespace swax
