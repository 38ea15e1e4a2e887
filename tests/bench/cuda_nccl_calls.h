// What benchmarks that call NCCL themselves share.
#pragma once

#include <nccl.h>

#include <cstring>
#include <string>
#include <vector>

#include "worker/comm/collectives.h"

namespace swax::test {

inline Status nccl_status(const char* call, ncclResult_t result) {
  if (result == ncclSuccess) return ok();
  return internal_error(std::string("NCCL ") + call + ": " + ncclGetErrorString(result) + " (" +
                        ncclGetLastError(nullptr) + ")");
}

// Made by rank 0. Every rank calls it.
inline Result<ncclUniqueId> nccl_unique_id(Collectives& host) {
  ncclUniqueId mine;
  std::memset(&mine, 0, sizeof mine);
  if (host.rank() == 0) SWAX_TRY(nccl_status("unique id", ncclGetUniqueId(&mine)));
  std::vector<ncclUniqueId> all(static_cast<size_t>(host.size()));
  SWAX_TRY(host.all_gather_host(std::as_bytes(std::span(&mine, 1)),
                                std::as_writable_bytes(std::span(all))));
  return all[0];
}

}  // namespace swax::test
