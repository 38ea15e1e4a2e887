// The form that was chosen for the products of one shape, as a line of text that another process
// replays: "m=512 n=768 ... align=256: algorithm=66 tile=20 ...". All numbers are written, so that
// a shape is met exactly and an algorithm is made again from its attributes alone. Threads: pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/spec/gemm.h"
#include "proto/base/status.h"

namespace swax::cuda {

// What a plan depends on.
struct GemmShape {
  int64_t m = 0;  // rows of c
  int64_t n = 0;
  int64_t k = 0;
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  DType in = DType::kF32;
  DType out = DType::kF32;
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
  int64_t align = 0;  // bytes, a power of two <= 256: of all addresses
  auto operator<=>(const GemmShape&) const = default;
};
GemmShape gemm_shape(const GemmArgs& a);

// In the order of kAttributeNames.
constexpr std::array<const char*, 9> kAttributeNames = {
    "algorithm", "tile", "stages", "split_k", "reduction", "swizzle", "custom", "inner", "cluster"};
using GemmAttributes = std::array<int64_t, kAttributeNames.size()>;

struct GemmChoice {
  enum class Form {
    kAlgorithm,  // of cuBLASLt, by its attributes
    kFirst,      // the first heuristic of cuBLASLt: its attributes do not describe it in full
    kPlain,      // the plain kernel: cuBLASLt has no algorithm
  };
  Form form = Form::kPlain;
  GemmAttributes attributes{};
  bool operator==(const GemmChoice&) const = default;
};

struct GemmLine {
  GemmShape shape;
  GemmChoice choice;
};
std::string choice_line(const GemmLine& line);  // without its end
// kFailedPrecondition: not a line of choice_line().
Result<GemmLine> parse_choice_line(std::string_view text);

}  // namespace swax::cuda
