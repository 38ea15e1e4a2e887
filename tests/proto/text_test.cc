// Goal: numbers print the same everywhere and untrusted text cannot harm a terminal or a log.
// Method: fixed expectations on both sides of each limit, and round trips of random bits.
#include "proto/base/text.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "proto/base/rng.h"

namespace swax {
namespace {

using std::string_literals::operator""s;

TEST(ToText, Integers) {
  EXPECT_EQ(to_text(0), "0");
  EXPECT_EQ(to_text(-17), "-17");
  EXPECT_EQ(to_text(INT64_MIN), "-9223372036854775808");
  EXPECT_EQ(to_text(UINT64_MAX), "18446744073709551615");
}

TEST(ToText, FloatsAreShortest) {
  EXPECT_EQ(to_text(0.1), "0.1");
  EXPECT_EQ(to_text(0.1F), "0.1");
  EXPECT_EQ(to_text(static_cast<double>(0.1F)), "0.10000000149011612");
  EXPECT_EQ(to_text(1e300), "1e+300");
  EXPECT_EQ(to_text(-0.0), "-0");
  EXPECT_EQ(to_text(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(to_text(-std::numeric_limits<float>::infinity()), "-inf");
  EXPECT_EQ(to_text(std::nan("")), "nan");
  EXPECT_EQ(to_text(std::copysign(std::nan(""), -1.0)), "nan");
}

TEST(ToText, FloatsReadBackToTheSameBits) {
  for (uint64_t i = 0; i < 20'000; ++i) {
    const PhiloxBlock b = random_block(5, Purpose::kTest, i);
    const auto value = std::bit_cast<double>(uint64_t{b[0]} << 32 | b[1]);
    const auto small = std::bit_cast<float>(b[2]);
    if (!std::isnan(value)) {
      ASSERT_EQ(std::strtod(to_text(value).c_str(), nullptr), value);
    }
    if (!std::isnan(small)) {
      ASSERT_EQ(std::strtof(to_text(small).c_str(), nullptr), small);
    }
  }
}

TEST(FixedText, Digits) {
  EXPECT_EQ(fixed_text(2.0 / 3, 3), "0.667");
  EXPECT_EQ(fixed_text(-1234.5, 0), "-1234");  // ties to even
  EXPECT_EQ(fixed_text(1.25, -3), "1");
  EXPECT_EQ(fixed_text(std::nan(""), 2), "nan");
  EXPECT_EQ(fixed_text(-std::numeric_limits<double>::max(), 1000).size(), 1U + 309 + 1 + 100);
}

TEST(HexBits, BothWidths) {
  EXPECT_EQ(hex_bits(1.0), "3ff0000000000000");
  EXPECT_EQ(hex_bits(-2.0F), "c0000000");
  EXPECT_EQ(hex_bits(0.0), "0000000000000000");
}

TEST(BytesText, UnitsAndTheirLimits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(bytes_text((int64_t{1} << 20) - 1), "1.00 MiB");
  EXPECT_EQ(bytes_text((int64_t{1} << 20) - 10'240), "1014.00 KiB");
  EXPECT_EQ(bytes_text(-2048), "-2.00 KiB");
  EXPECT_EQ(bytes_text(INT64_MAX), "8.00 EiB");
  EXPECT_EQ(bytes_text(INT64_MIN), "-8.00 EiB");
}

TEST(DurationText, UnitsAndTheirLimits) {
  EXPECT_EQ(duration_text(0), "0ms");
  EXPECT_EQ(duration_text(999), "999ms");
  EXPECT_EQ(duration_text(4'299), "4.2s");
  EXPECT_EQ(duration_text(59'999), "59.9s");
  EXPECT_EQ(duration_text(60'000), "1m 00s");
  EXPECT_EQ(duration_text(3'599'999), "59m 59s");
  EXPECT_EQ(duration_text(3'723'000), "1h 02m 03s");
  EXPECT_EQ(duration_text(90'061'000), "1d 01h 01m 01s");
  EXPECT_EQ(duration_text(-4'200), "-4.2s");
  EXPECT_EQ(duration_text(INT64_MIN), "-106751991167d 07h 12m 55s");
}

TEST(GroupDigits, Thousands) {
  EXPECT_EQ(group_digits(0), "0");
  EXPECT_EQ(group_digits(999), "999");
  EXPECT_EQ(group_digits(1'000), "1,000");
  EXPECT_EQ(group_digits(1'439'492'192), "1,439,492,192");
  EXPECT_EQ(group_digits(-100'000), "-100,000");
  EXPECT_EQ(group_digits(INT64_MIN), "-9,223,372,036,854,775,808");
}

TEST(ValidUtf8, AcceptsTheEndsOfEachLength) {
  for (const std::string& good :
       {""s, "a\0b"s, "\x7F"s, "\xC2\x80"s, "\xDF\xBF"s, "\xE0\xA0\x80"s, "\xED\x9F\xBF"s,
        "\xEE\x80\x80"s, "\xEF\xBF\xBF"s, "\xF0\x90\x80\x80"s, "\xF4\x8F\xBF\xBF"s}) {
    EXPECT_TRUE(valid_utf8(good)) << printable(good);
  }
}

TEST(ValidUtf8, RejectsAndNamesTheOffset) {
  for (const std::string& bad :
       {"\x80"s, "\xC0\x80"s, "\xC1\xBF"s, "\xE0\x9F\xBF"s, "\xED\xA0\x80"s, "\xED\xBF\xBF"s,
        "\xF0\x8F\xBF\xBF"s, "\xF4\x90\x80\x80"s, "\xF5\x80\x80\x80"s, "\xFF"s, "\xC2"s,
        "\xE2\x82"s, "\xF0\x9F\x98"s, "\xE2\x28\xA1"s, "\xE2\x82\x28"s}) {
    size_t offset = 99;
    EXPECT_FALSE(valid_utf8(bad)) << printable(bad);
    EXPECT_FALSE(valid_utf8("\xC3\xA9x" + bad, &offset)) << printable(bad);
    EXPECT_EQ(offset, 3U) << printable(bad);
  }
}

// All code points, encoded by the definition: exactly the scalar values are accepted.
TEST(ValidUtf8, ExactlyTheScalarValues) {
  for (uint32_t c = 0x800; c < 0x120000; ++c) {
    std::string text;
    if (c < 0x10000) {
      text += static_cast<char>(0xE0 | c >> 12);
    } else {
      text += static_cast<char>(0xF0 | c >> 18);
      text += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    }
    text += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (c & 0x3F));
    const bool scalar = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
    ASSERT_EQ(valid_utf8(text), scalar) << c;
  }
}

TEST(Split, KeepsEmptyPieces) {
  using Pieces = std::vector<std::string_view>;
  EXPECT_EQ(split("a,b", ','), (Pieces{"a", "b"}));
  EXPECT_EQ(split("", ','), (Pieces{""}));
  EXPECT_EQ(split(",a,", ','), (Pieces{"", "a", ""}));
}

TEST(EditDistance, KnownPairs) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("seq_len", "seqlen"), 1);
  EXPECT_EQ(edit_distance("abc", "bca"), 2);
}

TEST(Printable, EscapesControlsAndBrokenBytes) {
  EXPECT_EQ(printable("a\x1b[31m\n\x7F"), "a\\x1b[31m\\x0a\\x7f");
  EXPECT_EQ(printable("\xC3\xA9"), "\xC3\xA9");
  EXPECT_EQ(printable("\xC2\x9B"), "\\xc2\\x9b");  // CSI as a C1 control
  EXPECT_EQ(printable("\xFFok\xE2\x82"), "\\xffok\\xe2\\x82");
}

TEST(Printable, CutsAtWholePieces) {
  EXPECT_EQ(printable("12345678", 8), "12345678");
  EXPECT_EQ(printable("123456789", 8), "12345...");
  EXPECT_EQ(printable("1234\n6789", 8), "1234...");       // the escape does not fit
  EXPECT_EQ(printable("1234\xC3\xA9xyz", 8), "1234...");  // a character is not cut in two
  EXPECT_EQ(printable("12345678", 2), "..");
  for (size_t max = 0; max < 40; ++max) {
    EXPECT_LE(printable("a\x01\xC3\xA9\xFFzzzzzzzzzzzzzzzzzzzzzzzzzzzz", max).size(), max);
  }
}

}  // namespace
}  // namespace swax
