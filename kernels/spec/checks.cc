#include "kernels/spec/checks.h"

#include <string>

#include "proto/base/text.h"

namespace swax::spec {
namespace {

std::string shape_text(const int64_t* dims, int rank) {
  std::string out = "[";
  for (int i = 0; i < rank; ++i) {
    if (i != 0) out += ',';
    out += to_text(dims[i]);
  }
  return out + "]";
}

Status wrong(const char* op, const Expect& e, const std::string& what) {
  return invalid_argument(std::string(op) + ": " + e.name + " " + what);
}

Status expect_one(const char* op, const Expect& e) {
  const Tensor& t = *e.t;
  if (t.dtype != e.dtype) {
    return wrong(op, e,
                 std::string("is ") + dtype_name(t.dtype) + ": must be " + dtype_name(e.dtype));
  }
  bool same = t.rank == e.rank;
  for (int i = 0; same && i < e.rank; ++i) same = t.dims[i] == e.dims[i] && t.dims[i] >= 1;
  if (!same) {
    return wrong(op, e,
                 "has shape " + shape_text(t.dims, t.rank) + ": must be " +
                     shape_text(e.dims, e.rank) + " with every dimension >= 1");
  }
  if (e.rows == Rows::kContiguous && !t.contiguous()) return wrong(op, e, "must be contiguous");
  if (t.rank > 1 && t.dims[0] > 1 && t.row_stride < t.row_elements()) {
    return wrong(
        op, e,
        "has row_stride=" + to_text(t.row_stride) + ": must be >= " + to_text(t.row_elements()));
  }
  return ok();
}

struct RowBytes {
  int64_t row;
  int64_t stride;
};
// A vector, and what has one row, is one row alone.
RowBytes row_bytes(const Tensor& t) {
  const bool rows = t.rank > 1 && t.dims[0] > 1;
  const int64_t row = (rows ? t.row_elements() : t.elements()) * dtype_bytes(t.dtype);
  return {row, rows ? t.row_stride * dtype_bytes(t.dtype) : row};
}

struct Range {
  const char* begin;
  const char* end;
};
Range range(const Tensor& t) {
  const char* begin = static_cast<const char*>(t.data);
  const auto [row, stride] = row_bytes(t);
  const int64_t rows = t.rank > 1 ? t.dims[0] : 1;
  return {begin, begin + (rows - 1) * stride + row};
}

}  // namespace

Status expect(const char* op, std::initializer_list<Expect> all) {
  for (const Expect& e : all) SWAX_TRY(expect_one(op, e));
  return ok();
}

Status expect_optional(const char* op, const Expect& e) {
  if (e.t->empty()) return ok();
  return expect_one(op, e);
}

Status bad_value(const char* op, const char* what, int64_t value, const char* limit) {
  return invalid_argument(std::string(op) + ": " + what + "=" + to_text(value) + ": must be " +
                          limit);
}

Status bad_value(const char* op, const char* what, double value, const char* limit) {
  return invalid_argument(std::string(op) + ": " + what + "=" + to_text(value) + ": must be " +
                          limit);
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.data == nullptr || b.data == nullptr) return false;
  const Range ra = range(a);
  const Range rb = range(b);
  if (ra.begin >= rb.end || rb.begin >= ra.end) return false;
  const int64_t stride = row_bytes(a).stride;
  if (row_bytes(b).stride != stride) return true;
  // Where b's rows begin behind a's, round the stride.
  const int64_t begin = ((rb.begin - ra.begin) % stride + stride) % stride;
  return begin < row_bytes(a).row || begin + row_bytes(b).row > stride;
}

Status expect_same_or_apart(const char* op, const Named& out, const Named& in) {
  const bool strides_agree =
      out.t.row_stride == in.t.row_stride || (out.t.contiguous() && in.t.contiguous());
  if ((out.t.data == in.t.data && strides_agree) || !overlap(out.t, in.t)) return ok();
  return invalid_argument(std::string(op) + ": " + out.name + " shares memory with " + in.name +
                          ": must be " + in.name + " itself or apart from it");
}

Status expect_apart(const char* op, const Named& out, const Named& in) {
  if (!overlap(out.t, in.t)) return ok();
  return invalid_argument(std::string(op) + ": " + out.name + " shares memory with " + in.name +
                          ": must lie apart from it");
}

}  // namespace swax::spec
