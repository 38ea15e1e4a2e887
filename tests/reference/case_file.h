// Reader of the stored reference cases: index.tsv (case, name, role, dtype, shape, offset, bytes
// into CASE.bin), meta.tsv (case, key, value), CASE.bin (little-endian, C order). Everything is
// widened to double or int32. A missing tensor or key aborts: the files are part of the tests.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "tests/reference/types.h"

namespace swax::reference {

struct CaseTensor {
  std::vector<int64_t> shape;
  Vec values;                 // f32, f64
  std::vector<int32_t> ints;  // i32
};

class CaseFile {
 public:
  // Fails: kNotFound without files or without that case, kDataLoss on a malformed line or a short
  // file.
  static Result<CaseFile> load(const std::string& dir, const std::string& name);
  // Names of all cases of index.tsv, in file order, each once.
  static Result<std::vector<std::string>> names(const std::string& dir);

  const CaseTensor& in(const std::string& name) const { return find("in", name); }
  const CaseTensor& out(const std::string& name) const { return find("out", name); }
  const CaseTensor& grad(const std::string& name) const { return find("grad", name); }
  std::vector<std::string> names_of(const std::string& role) const;  // sorted
  bool has(const std::string& role, const std::string& name) const;
  double number(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double number_or(const std::string& key, double fallback) const;

 private:
  const CaseTensor& find(const std::string& role, const std::string& name) const;
  std::map<std::string, std::map<std::string, CaseTensor>> tensors_;  // role, name
  std::map<std::string, std::string> meta_;
};

// The cases lie as (B, H, T, D); the reference functions take one row as (T, H, D). D = 1 for
// gates.
Vec token_major(const CaseTensor& x_BHTD, int64_t row);
// Part `row` of an array with leading dimension B, order kept.
Vec batch_row(const CaseTensor& x, int64_t row);
std::vector<int32_t> batch_row_ints(const CaseTensor& x, int64_t row);

}  // namespace swax::reference
