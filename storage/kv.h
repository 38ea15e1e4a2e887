// Kv: an ordered key-value store with atomic batches. Two implementations with one contract test:
// RocksKv (storage/rocks_kv.h) and MemKv (storage/mem_kv.h). Keys and values are bytes. Values <=
// 64 MiB. Threads: all methods may be called from any thread; a write is visible to every later
// read.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"

namespace swax {

struct KvWrite {
  std::string key;
  std::optional<std::string> value;  // nullopt deletes
};

class Kv {
 public:
  virtual ~Kv() = default;
  // kNotFound; kDataLoss when the stored bytes fail their checksum.
  virtual Result<std::string> get(std::string_view key) = 0;
  // All or nothing. With sync the batch has reached the disk when the call returns.
  // kResourceExhausted: disk full, nothing written.
  virtual Status write(const std::vector<KvWrite>& batch, bool sync) = 0;
  // Calls visit(key, value) in key order for keys with `prefix`, starting at the first key >= from
  // (from empty: the prefix); stops when visit returns false. Sees one consistent state.
  virtual Status scan(std::string_view prefix, std::string_view from,
                      const std::function<bool(std::string_view, std::string_view)>& visit) = 0;
};

}  // namespace swax
