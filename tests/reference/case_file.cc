#include "tests/reference/case_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <sstream>

namespace swax::reference {
namespace {

static_assert(std::endian::native == std::endian::little);

Result<std::string> slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> fields(const std::string& line, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(line);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// One array out of the bytes of a case. bytes has been checked against dtype and shape.
template <typename From, typename To>
void widen(const std::string& bytes, int64_t offset, int64_t count, std::vector<To>& to) {
  std::vector<From> raw(static_cast<size_t>(count));
  std::memcpy(raw.data(), bytes.data() + offset, raw.size() * sizeof(From));
  to.assign(raw.begin(), raw.end());
}

Result<CaseTensor> parse_tensor(const std::vector<std::string>& row, const std::string& bytes) {
  CaseTensor tensor;
  int64_t count = 1;
  for (const std::string& extent : fields(row[4], ',')) {
    tensor.shape.push_back(std::stoll(extent));
    count *= tensor.shape.back();
  }
  const int64_t offset = std::stoll(row[5]);
  const int64_t size = std::stoll(row[6]);
  const int64_t width = row[3] == "f64" ? 8 : 4;
  if (size != count * width || offset + size > static_cast<int64_t>(bytes.size())) {
    return data_loss(row[0] + "/" + row[1] + ": size of the array");
  }
  if (row[3] == "f32") {
    widen<float>(bytes, offset, count, tensor.values);
  } else if (row[3] == "f64") {
    widen<double>(bytes, offset, count, tensor.values);
  } else if (row[3] == "i32") {
    widen<int32_t>(bytes, offset, count, tensor.ints);
  } else {
    return data_loss(row[0] + "/" + row[1] + ": dtype " + row[3]);
  }
  return tensor;
}

}  // namespace

Result<CaseFile> CaseFile::load(const std::string& dir, const std::string& name) {
  SWAX_ASSIGN(const std::string index, slurp(dir + "/index.tsv"));
  SWAX_ASSIGN(const std::string meta, slurp(dir + "/meta.tsv"));
  SWAX_ASSIGN(const std::string bytes, slurp(dir + "/" + name + ".bin"));
  CaseFile file;
  for (const std::string& line : fields(index, '\n')) {
    const std::vector<std::string> row = fields(line, '\t');
    if (row.empty() || row[0] != name) continue;
    if (row.size() != 7) return data_loss("index.tsv: " + line);
    SWAX_ASSIGN(file.tensors_[row[2]][row[1]], parse_tensor(row, bytes));
  }
  if (file.tensors_.empty()) return not_found("case " + name);
  for (const std::string& line : fields(meta, '\n')) {
    const std::vector<std::string> row = fields(line, '\t');
    if (row.size() == 3 && row[0] == name) file.meta_[row[1]] = row[2];
  }
  return file;
}

Result<std::vector<std::string>> CaseFile::names(const std::string& dir) {
  SWAX_ASSIGN(const std::string index, slurp(dir + "/index.tsv"));
  std::vector<std::string> all;
  for (const std::string& line : fields(index, '\n')) {
    const std::string name = line.substr(0, line.find('\t'));
    if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  }
  return all;
}

std::vector<std::string> CaseFile::names_of(const std::string& role) const {
  std::vector<std::string> all;
  const auto found = tensors_.find(role);
  if (found == tensors_.end()) return all;
  for (const auto& [name, tensor] : found->second) all.push_back(name);
  return all;
}

bool CaseFile::has(const std::string& role, const std::string& name) const {
  const auto found = tensors_.find(role);
  return found != tensors_.end() && found->second.contains(name);
}

const CaseTensor& CaseFile::find(const std::string& role, const std::string& name) const {
  SWAX_CHECK(has(role, name));
  return tensors_.at(role).at(name);
}

double CaseFile::number(const std::string& key) const {
  SWAX_CHECK(meta_.contains(key));
  return std::stod(meta_.at(key));
}

int64_t CaseFile::integer(const std::string& key) const {
  return static_cast<int64_t>(number(key));
}

double CaseFile::number_or(const std::string& key, double fallback) const {
  return meta_.contains(key) ? number(key) : fallback;
}

Vec token_major(const CaseTensor& x_BHTD, int64_t row) {
  SWAX_CHECK(x_BHTD.shape.size() == 3 || x_BHTD.shape.size() == 4);
  const int64_t heads = x_BHTD.shape[1], tokens = x_BHTD.shape[2];
  const int64_t dim = x_BHTD.shape.size() == 4 ? x_BHTD.shape[3] : 1;
  const Vec x_HTD = batch_row(x_BHTD, row);
  Vec y_THD = zeros(heads * tokens * dim);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t d = 0; d < dim; ++d) {
        at(y_THD, (t * heads + h) * dim + d) = at(x_HTD, (h * tokens + t) * dim + d);
      }
    }
  }
  return y_THD;
}

Vec batch_row(const CaseTensor& x, int64_t row) {
  SWAX_CHECK(row < x.shape.at(0));
  const int64_t stride = length(x.values) / x.shape[0];
  return {x.values.begin() + row * stride, x.values.begin() + (row + 1) * stride};
}

std::vector<int32_t> batch_row_ints(const CaseTensor& x, int64_t row) {
  SWAX_CHECK(row < x.shape.at(0));
  const int64_t stride = static_cast<int64_t>(x.ints.size()) / x.shape[0];
  return {x.ints.begin() + row * stride, x.ints.begin() + (row + 1) * stride};
}

}  // namespace swax::reference
