// One message in one small file that proves itself: magic, version, length, payload, XXH3-128.
// Used by COMMITTED and rank-NNNNN.shard; layout in storage/FORMAT.md. Internal to storage.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/base/status.h"

namespace swax {

constexpr size_t kContainerHeaderBytes = 24;
constexpr int64_t kContainerBytesMax = 256LL * 1024 * 1024;  // 84 GB in 4 MiB chunks take 1.5 MB

struct ContainerKind {
  std::string_view magic;  // 8 bytes
  uint32_t version = 0;
};
constexpr ContainerKind kCommittedKind{"SWAXCKPT", 1};
constexpr ContainerKind kShardKind{"SWAXSHRD", 1};

std::string encode_container(const ContainerKind& kind, std::string_view payload);
// The payload inside `bytes`; kDataLoss names what does not fit.
Result<std::string_view> decode_container(const ContainerKind& kind, std::string_view bytes);

}  // namespace swax
