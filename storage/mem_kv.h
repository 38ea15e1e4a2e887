// Ordered in-memory Kv with the contract of kv.h: for tests and the simulator. `sync` has no effect
// but is counted.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "storage/kv.h"

namespace swax {

class MemKv final : public Kv {
 public:
  Result<std::string> get(std::string_view key) override;
  Status write(const std::vector<KvWrite>& batch, bool sync) override;
  Status scan(std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) override;
  int64_t syncs() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string, std::less<>> data_;
  int64_t syncs_ = 0;
};

}  // namespace swax
