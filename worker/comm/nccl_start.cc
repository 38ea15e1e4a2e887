#include "worker/comm/nccl_start.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cuda/check.h"
#include "proto/base/clock.h"
#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax {
namespace {

// Multicast objects of NVLink are shared by everybody on the host: NCCL must not make any. Read by
// NCCL when the first communicator is made.
void switch_off_multicast() {
  static std::once_flag once;
  std::call_once(once, [] { ::setenv("NCCL_NVLS_ENABLE", "0", 1); });
}

Status nccl_failed(const char* call, ncclResult_t result) {
  return failed_precondition(std::string("NCCL ") + call + ": " + ncclGetErrorString(result) +
                             " (" + printable(ncclGetLastError(nullptr), 200) + ")");
}

// The device that the backend computes on, which becomes that of the calling thread.
Result<int> device_of(Backend& backend) {
  SWAX_ASSIGN(const Buffer probe, backend.allocate(256, MemoryKind::kDevice));
  cudaPointerAttributes attributes{};
  SWAX_CUDA_TRY("collectives", cudaPointerGetAttributes(&attributes, probe.data()));
  SWAX_CUDA_TRY("collectives", cudaSetDevice(attributes.device));
  return attributes.device;
}

// What a rank says before the communicator is made. Rank 0's id counts.
struct Hello {
  cudaUUID_t gpu;
  ncclUniqueId id;
  int32_t result;
};

Result<ncclUniqueId> agree(int device, Collectives& host) {
  cudaDeviceProp properties{};
  SWAX_CUDA_TRY("collectives", cudaGetDeviceProperties(&properties, device));
  Hello mine;
  std::memset(&mine, 0, sizeof mine);
  mine.gpu = properties.uuid;
  if (host.rank() == 0) mine.result = ncclGetUniqueId(&mine.id);
  std::vector<Hello> all(static_cast<size_t>(host.size()));
  SWAX_TRY(host.all_gather_host(std::as_bytes(std::span(&mine, 1)),
                                std::as_writable_bytes(std::span(all))));
  if (all[0].result != ncclSuccess) {
    return nccl_failed("unique id of rank 0", static_cast<ncclResult_t>(all[0].result));
  }
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = a + 1; b < all.size(); ++b) {
      if (std::memcmp(&all[a].gpu, &all[b].gpu, sizeof(cudaUUID_t)) != 0) continue;
      return failed_precondition("ranks " + to_text(a) + " and " + to_text(b) +
                                 " have the same GPU: each rank needs one of its own");
    }
  }
  return all[0].id;
}

// Waits for the other ranks; the communicator belongs to the caller in any case.
Status await_ready(ncclComm_t comm, const NcclOptions& options, const ProgressBoard& board) {
  SystemClock clock;
  const int64_t begin_ms = clock.monotonic_ms();
  ncclResult_t state = ncclInProgress;
  while (true) {
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return nccl_failed("start", asked);
    if (state == ncclSuccess) return ok();
    if (state != ncclInProgress) return nccl_failed("start", state);
    if (clock.monotonic_ms() - begin_ms > options.init_ms_max) {
      return deadline_exceeded("NCCL has not started after " + duration_text(options.init_ms_max) +
                               "; " + board.late(kNcclStartCalls));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Result<NcclStart> nccl_start(Backend& backend, Collectives& host, const NcclOptions& options) {
  NcclStart start;
  switch_off_multicast();
  SWAX_ASSIGN(start.device, device_of(backend));
  SWAX_ASSIGN(const ncclUniqueId id, agree(start.device, host));
  SWAX_ASSIGN(start.board, ProgressBoard::create(host, xxh3_128(&id, sizeof id).hex()));
  start.board->asked(kNcclStartCalls);
  start.board->reached(kNcclStartCalls);

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = "swax";
  if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
  start.copy_engines = options.copy_engines && start.board->all_known();
  if (start.copy_engines) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  const ncclResult_t begun =
      ncclCommInitRankConfig(&start.comm, host.size(), id, host.rank(), &config);
  if (begun != ncclSuccess && begun != ncclInProgress) {
    if (start.comm != nullptr) ncclCommAbort(start.comm);
    return nccl_failed("start", begun);
  }
  if (const Status ready = await_ready(start.comm, options, *start.board); !ready.ok()) {
    start.board->give_up(ready.message());
    ncclCommAbort(start.comm);
    return ready;
  }
  start.board->completed(kNcclStartCalls);
  return start;
}

}  // namespace swax
