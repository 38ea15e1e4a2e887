#include "worker/train/kernel_choices.h"

#include <algorithm>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kFileBytesMax = 4 * kMiB;

Result<std::string> stored(const std::string& file) {
  if (file.empty()) return std::string();
  auto text = read_file(file, kFileBytesMax);
  if (!text.ok() && text.status().code() == Code::kNotFound) return std::string();
  return text;
}

Status adopt(Backend& backend, const std::string& lines, const std::string& file) {
  const Status s = backend.adopt(lines);
  if (s.ok() || file.empty()) return s;
  return s.with_context(file +
                        ": the run computed with this, and no other form is sure to give its "
                        "bits; resume it on such a device and library, or remove the file "
                        "to choose anew");
}

// Lines of `more` that are not in `text` follow it.
std::string merged(const std::string& text, const std::string& more) {
  const std::vector<std::string_view> have = split(text, '\n');
  std::string out = text;
  for (const std::string_view line : split(more, '\n'))
    if (!line.empty() && std::find(have.begin(), have.end(), line) == have.end())
      out += std::string(line) + "\n";
  return out;
}

// What rank 0 does alone: all lines that the ranks adopt.
Result<std::string> settle(Backend& backend, Stream& stream, std::span<const GemmArgs> products,
                           const std::string& file, KernelChoices* out) {
  SWAX_ASSIGN(const std::string before, stored(file));
  SWAX_TRY(adopt(backend, before, file));
  SWAX_ASSIGN(out->lines, backend.choose(stream, products));
  const std::string all = merged(before, out->lines);
  out->chosen = all != before;
  if (out->chosen && !file.empty()) SWAX_TRY(write_atomic(file, all));
  return all;
}

struct Header {
  int64_t code = 0;   // of rank 0
  int64_t bytes = 0;  // of its message; or of the lines of the products, then of all lines
  int64_t lines = 0;  // of the lines of the products
  int64_t chosen = 0;
};

}  // namespace

Result<KernelChoices> settle_kernel_choices(Backend& backend, Stream& stream, Collectives& group,
                                            std::span<const GemmArgs> products,
                                            const std::string& file) {
  KernelChoices out;
  if (!backend.has_choices()) return out;
  std::string text;
  Header mine;
  if (group.rank() == 0) {
    auto settled = settle(backend, stream, products, file, &out);
    mine.code = static_cast<int64_t>(settled.status().code());
    mine.lines = static_cast<int64_t>(out.lines.size());
    mine.chosen = out.chosen ? 1 : 0;
    text = settled.ok() ? out.lines + *settled : settled.status().message();
    mine.bytes = static_cast<int64_t>(text.size());
  }
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<Header> headers(ranks);
  SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(headers))));
  const Header& first = headers[0];
  text.resize(static_cast<size_t>(first.bytes));
  std::string all(text.size() * ranks, '\0');
  SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(text)),
                                 std::as_writable_bytes(std::span(all))));
  all.resize(text.size());
  if (first.code != 0) return Status(static_cast<Code>(first.code), all);
  if (group.rank() == 0) return out;
  out.lines = all.substr(0, static_cast<size_t>(first.lines));
  out.chosen = first.chosen != 0;
  SWAX_TRY(adopt(backend, all.substr(out.lines.size()), file));
  return out;
}

}  // namespace swax
