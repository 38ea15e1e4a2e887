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

struct Range {
  const char* begin;
  const char* end;
};
Range range(const Tensor& t) {
  const char* begin = static_cast<const char*>(t.data);
  const int64_t last =
      (t.dims[0] - 1) * (t.rank > 1 ? t.row_stride : 1) + (t.rank > 1 ? t.row_elements() : 1);
  return {begin, begin + last * dtype_bytes(t.dtype)};
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
  return ra.begin < rb.end && rb.begin < ra.end;
}

}  // namespace swax::spec
