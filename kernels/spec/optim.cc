#include "kernels/spec/optim.h"

#include "kernels/spec/checks.h"

namespace swax {

Status validate(const RowSumsqArgs& a) {
  constexpr const char* kOp = "row_sumsq";
  const int64_t size = a.x_S.elements();
  const int64_t rows = a.row_sums_R.elements();
  SWAX_TRY(spec::expect(kOp, {{"x_S", a.x_S, DType::kF32, {size}}}));
  // A rank may own padding alone.
  if (a.segments.empty()) return ok();
  SWAX_TRY(spec::expect(kOp, {{"row_sums_R", a.row_sums_R, DType::kF64, {rows}}}));
  for (const RowSegment& s : a.segments) {
    if (s.rows < 1 || s.row_elements < 1 || s.begin < 0 ||
        s.begin + s.rows * s.row_elements > size) {
      return spec::bad_value(kOp, "segment begin", s.begin, "a run of whole rows inside x_S");
    }
    if (s.first_row < 0 || s.first_row + s.rows > rows) {
      return spec::bad_value(kOp, "segment first_row", s.first_row, "rows inside row_sums_R");
    }
  }
  return ok();
}

Status validate(const NormTreeArgs& a) {
  const int64_t gathered = a.gathered_R.elements();
  const int64_t rows = a.order.elements();
  return spec::expect("norm_tree", {{"gathered_R", a.gathered_R, DType::kF64, {gathered}},
                                    {"order", a.order, DType::kI64, {rows}},
                                    {"scratch", a.scratch, DType::kF64, {rows}}});
}

Status validate(const AdamWArgs& a) {
  constexpr const char* kOp = "adamw";
  const int64_t size = a.master_S.elements();
  SWAX_TRY(spec::expect(kOp, {{"master_S", a.master_S, DType::kF32, {size}},
                              {"m_S", a.m_S, DType::kF32, {size}},
                              {"v_S", a.v_S, DType::kF32, {size}},
                              {"grad_S", a.grad_S, DType::kF32, {size}}}));
  SWAX_TRY(spec::expect_optional(kOp, {"values_S", a.values_S, DType::kBF16, {size}}));
  for (const DecaySegment& s : a.segments) {
    if (s.begin < 0 || s.end < s.begin || s.end > size) {
      return spec::bad_value(kOp, "segment end", s.end, "a range inside the shard");
    }
  }
  return ok();
}

}  // namespace swax
