#include "kernels/spec/gemm.h"

#include <limits>

#include "kernels/spec/checks.h"

namespace swax {
namespace {

constexpr int64_t kDimMax = std::numeric_limits<int32_t>::max();  // of the BLAS interfaces

int64_t rows_of(const GemmArgs& a) { return a.trans_a ? a.a.dims[1] : a.a.dims[0]; }
int64_t inner_of(const GemmArgs& a) { return a.trans_a ? a.a.dims[0] : a.a.dims[1]; }
int64_t cols_of(const GemmArgs& a) { return a.trans_b ? a.b.dims[0] : a.b.dims[1]; }

}  // namespace

Status validate(const GemmArgs& a) {
  constexpr const char* kOp = "gemm";
  const int64_t m = rows_of(a);
  const int64_t k = inner_of(a);
  const int64_t n = cols_of(a);
  const DType in = a.a.dtype;
  const DType out = a.c.dtype;
  if ((in != DType::kF32 && in != DType::kBF16) || (out != DType::kF32 && out != DType::kBF16)) {
    return invalid_argument("gemm: a, b, c must be f32 or bf16");
  }
  const auto strided = spec::Rows::kStrided;
  SWAX_TRY(spec::expect(kOp, {{"a", a.a, in, {a.trans_a ? k : m, a.trans_a ? m : k}, strided},
                              {"b", a.b, in, {a.trans_b ? n : k, a.trans_b ? k : n}, strided},
                              {"c", a.c, out, {m, n}, strided}}));
  for (const int64_t d : {m, n, k, a.a.row_stride, a.b.row_stride, a.c.row_stride}) {
    if (d > kDimMax) return spec::bad_value(kOp, "a dimension or stride", d, "below 2^31");
  }
  SWAX_TRY(spec::expect_apart(kOp, {"c", a.c}, {"a", a.a}));
  SWAX_TRY(spec::expect_apart(kOp, {"c", a.c}, {"b", a.b}));
  SWAX_TRY(spec::expect_apart(kOp, {"c", a.c}, {"addend", a.addend}));
  if (a.addend.empty()) return ok();
  if (a.accumulate) return invalid_argument("gemm: an addend and accumulate exclude each other");
  SWAX_TRY(spec::expect(kOp, {{"addend", a.addend, out, {m, n}, strided}}));
  if (m > 1 && a.addend.row_stride != a.c.row_stride) {
    return spec::bad_value(kOp, "addend row_stride", a.addend.row_stride, "that of c");
  }
  return ok();
}

double cost(const GemmArgs& a) {
  return 2.0 * static_cast<double>(rows_of(a)) * static_cast<double>(cols_of(a)) *
         static_cast<double>(inner_of(a));
}

}  // namespace swax
