#include "storage/mem_kv.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/text.h"

namespace swax {

Result<std::string> MemKv::get(std::string_view key) {
  const std::scoped_lock lock(mutex_);
  const auto it = data_.find(key);
  if (it == data_.end()) return not_found("get " + printable(key));
  return it->second;
}

Status MemKv::write(const std::vector<KvWrite>& batch, bool sync) {
  for (const KvWrite& item : batch) {
    if (item.value && item.value->size() > static_cast<size_t>(64 * kMiB)) {
      return invalid_argument("value of " + printable(item.key) + ": must be at most 64 MiB");
    }
  }
  const std::scoped_lock lock(mutex_);
  for (const KvWrite& item : batch) {
    if (item.value) {
      data_.insert_or_assign(item.key, *item.value);
    } else {
      data_.erase(item.key);
    }
  }
  if (sync) ++syncs_;
  return ok();
}

Status MemKv::scan(std::string_view prefix, std::string_view from,
                   const std::function<bool(std::string_view, std::string_view)>& visit) {
  // A copy, so that visit sees one state and may call back.
  std::vector<std::pair<std::string, std::string>> found;
  {
    const std::scoped_lock lock(mutex_);
    for (auto it = data_.lower_bound(std::max(prefix, from));
         it != data_.end() && it->first.starts_with(prefix); ++it) {
      found.emplace_back(*it);
    }
  }
  for (const auto& [key, value] : found) {
    if (!visit(key, value)) break;
  }
  return ok();
}

int64_t MemKv::syncs() const {
  const std::scoped_lock lock(mutex_);
  return syncs_;
}

}  // namespace swax
