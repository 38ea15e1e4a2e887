// Collectives of one group of ranks: LocalCollectives (N ranks as threads of one process),
// MpiCollectives (processes, CPU), NcclCollectives (GPUs). Data moves, it is never added here: sums
// have an order of their own (worker/train/slot_sum). Device calls enqueue on the given stream and
// give the event of their completion; on the CPU they are complete when they return. Host calls
// block. Every rank must make the same calls in the same order; a rank that dies or calls abort()
// makes the others' calls return kUnavailable (threads) or ends their processes (MPI). Errors are
// final: the group cannot be used again. Threads: one thread per rank makes all calls, except
// abort(), which any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Device memory for an exchange buffer: of `backend`, or where device calls move it best. Every
  // rank asks for the same sizes in the same order; the collectives outlive it.
  virtual Result<Buffer> allocate(Backend& backend, int64_t bytes) {
    return backend.allocate(bytes, MemoryKind::kDevice);
  }
  // Called once for each exchange buffer before its first use; optional, default: nothing.
  virtual Status register_buffer(Tensor) { return ok(); }
  // full [W*S] := shard of rank 0, of rank 1, ...; shard may be the rank's own part of full. Same
  // dtype, contiguous.
  virtual Result<Event> all_gather(Stream& s, Tensor shard, Tensor full) = 0;
  // send [W*S] is W equal pieces; piece p goes to rank p; recv [W*S] holds the piece of rank 0, of
  // rank 1, ... send and recv differ.
  virtual Result<Event> all_to_all(Stream& s, Tensor send, Tensor recv) = 0;
  // all := mine of rank 0, of rank 1, ...; all.size() == size() * mine.size().
  virtual Status all_gather_host(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // Element-wise maximum over ranks, in place.
  virtual Status max_host(std::span<int64_t> values) = 0;
  virtual Status barrier() = 0;
  // Ends the group: every rank's pending and later calls fail. `reason` is logged by the caller's
  // side.
  virtual void abort(std::string_view reason) = 0;
};

}  // namespace swax
