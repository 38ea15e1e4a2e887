#include "kernels/cuda/gemm_choice.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "proto/base/text.h"

namespace swax::cuda {
namespace {

constexpr std::array<const char*, 12> kShapeNames = {"m",        "n",        "k",   "a_stride",
                                                     "b_stride", "c_stride", "in",  "out",
                                                     "trans_a",  "trans_b",  "add", "align"};
using ShapeNumbers = std::array<int64_t, kShapeNames.size()>;
using Names = std::span<const char* const>;

int64_t alignment(const void* p) {
  const uint64_t bits = reinterpret_cast<uint64_t>(p) | 256U;
  return static_cast<int64_t>(bits & (~bits + 1));
}

// Every member: one more would not compile. A type is written as its bytes.
ShapeNumbers numbers_of(const GemmShape& s) {
  const auto& [m, n, k, a, b, c, in, out, trans_a, trans_b, accumulate, align] = s;
  return {m, n, k, a, b, c, dtype_bytes(in), dtype_bytes(out), trans_a, trans_b, accumulate, align};
}

GemmShape shape_of(const ShapeNumbers& v) {
  const auto type = [](int64_t bytes) { return bytes == 2 ? DType::kBF16 : DType::kF32; };
  return {.m = v[0],
          .n = v[1],
          .k = v[2],
          .a_stride = v[3],
          .b_stride = v[4],
          .c_stride = v[5],
          .in = type(v[6]),
          .out = type(v[7]),
          .trans_a = v[8] != 0,
          .trans_b = v[9] != 0,
          .accumulate = v[10] != 0,
          .align = v[11]};
}

std::string numbers_text(Names names, std::span<const int64_t> values) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i)
    out += (i > 0 ? " " : "") + std::string(names[i]) + "=" + to_text(values[i]);
  return out;
}

bool parse_numbers(std::string_view text, Names names, std::span<int64_t> values) {
  const std::vector<std::string_view> words = split(text, ' ');
  if (words.size() != names.size()) return false;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string start = std::string(names[i]) + "=";
    if (!words[i].starts_with(start)) return false;
    const char* const end = words[i].data() + words[i].size();
    const auto [at, error] = std::from_chars(words[i].data() + start.size(), end, values[i]);
    if (error != std::errc() || at != end) return false;
  }
  return true;
}

constexpr const char* kFirstWord = "first heuristic";
constexpr const char* kPlainWord = "plain kernel";

}  // namespace

GemmShape gemm_shape(const GemmArgs& a) {
  const auto stride = [](const Tensor& t) {
    return t.dims[0] > 1 ? t.row_stride : t.row_elements();
  };
  GemmShape s;
  s.m = a.c.dims[0];
  s.n = a.c.dims[1];
  s.k = a.trans_a ? a.a.dims[0] : a.a.dims[1];
  s.a_stride = stride(a.a);
  s.b_stride = stride(a.b);
  s.c_stride = stride(a.c);
  s.in = a.a.dtype;
  s.out = a.c.dtype;
  s.trans_a = a.trans_a;
  s.trans_b = a.trans_b;
  // An addend has the layout of c, and which of the two is added does not matter to an algorithm.
  s.accumulate = a.accumulate || !a.addend.empty();
  s.align = std::min(
      {alignment(a.a.data), alignment(a.b.data), alignment(a.c.data), alignment(a.addend.data)});
  return s;
}

std::string choice_line(const GemmLine& line) {
  const std::string shape = numbers_text(kShapeNames, numbers_of(line.shape)) + ": ";
  switch (line.choice.form) {
    case GemmChoice::Form::kAlgorithm:
      return shape + numbers_text(kAttributeNames, line.choice.attributes);
    case GemmChoice::Form::kFirst:
      return shape + kFirstWord;
    case GemmChoice::Form::kPlain:
      return shape + kPlainWord;
  }
  return shape;
}

Result<GemmLine> parse_choice_line(std::string_view text) {
  const Status bad =
      failed_precondition("\"" + printable(text, 200) + "\": not the choice of a product");
  const size_t colon = text.find(": ");
  if (colon == std::string_view::npos) return bad;
  GemmLine line;
  ShapeNumbers numbers{};
  if (!parse_numbers(text.substr(0, colon), kShapeNames, numbers)) return bad;
  line.shape = shape_of(numbers);
  if (numbers_of(line.shape) != numbers) return bad;
  const std::string_view form = text.substr(colon + 2);
  if (form == kPlainWord) return line;
  if (form == kFirstWord) {
    line.choice.form = GemmChoice::Form::kFirst;
    return line;
  }
  line.choice.form = GemmChoice::Form::kAlgorithm;
  if (!parse_numbers(form, kAttributeNames, line.choice.attributes)) return bad;
  return line;
}

}  // namespace swax::cuda
