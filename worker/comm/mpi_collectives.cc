#include "worker/comm/mpi_collectives.h"

#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "proto/base/text.h"
#include "worker/comm/mpi_piece.h"

namespace swax {
namespace {

// What the launcher sees of a rank that ended the group: the attempt may be started again.
constexpr int kExitAborted = 75;

class MpiCollectives final : public Collectives {
 public:
  using OnAbort = std::function<void(std::string_view)>;
  MpiCollectives(int rank, int size, int64_t piece_limit, OnAbort on_abort)
      : rank_(rank), size_(size), piece_limit_(piece_limit), on_abort_(std::move(on_abort)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<Event> all_gather(Stream&, Tensor shard, Tensor full) override {
    if (!shard.contiguous() || !full.contiguous() || shard.dtype != full.dtype ||
        full.elements() != shard.elements() * size_) {
      return invalid_argument("all_gather: full must hold " + to_text(size_) +
                              " shards of the same dtype, contiguous");
    }
    gather(shard.data, shard.bytes(), full.data);
    return Event{};
  }

  Result<Event> all_to_all(Stream&, Tensor send, Tensor recv) override {
    if (!send.contiguous() || !recv.contiguous() || send.dtype != recv.dtype ||
        send.elements() != recv.elements() || send.elements() % size_ != 0) {
      return invalid_argument("all_to_all: send and recv must hold " + to_text(size_) +
                              " equal pieces of the same dtype, contiguous");
    }
    const MpiPiece piece(send.bytes() / size_, piece_limit_);
    MPI_Alltoall(send.data, piece.count(), piece.type(), recv.data, piece.count(), piece.type(),
                 MPI_COMM_WORLD);
    return Event{};
  }

  Status all_gather_host(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (all.size() != mine.size() * static_cast<size_t>(size_)) {
      return invalid_argument("all_gather_host: all must hold " + to_text(size_) + " parts");
    }
    gather(mine.data(), static_cast<int64_t>(mine.size()), all.data());
    return ok();
  }

  Status max_host(std::span<int64_t> values) override {
    if (values.size() > kMaxValues) {
      return invalid_argument("max_host: " + to_text(values.size()) + " values: must be at most " +
                              to_text(kMaxValues));
    }
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_INT64_T,
                  MPI_MAX, MPI_COMM_WORLD);
    return ok();
  }

  Status barrier() override {
    MPI_Barrier(MPI_COMM_WORLD);
    return ok();
  }

  // From the thread of MPI it ends the job at once; any other thread may not call MPI and leaves
  // the process, which the launcher answers by ending the others.
  void abort(std::string_view reason) override {
    if (on_abort_) on_abort_(reason);
    if (std::this_thread::get_id() == thread_) MPI_Abort(MPI_COMM_WORLD, kExitAborted);
    ::_exit(kExitAborted);
  }

 private:
  static constexpr size_t kMaxValues = size_t{1} << 20;

  void gather(const void* mine, int64_t bytes, void* all) const {
    const MpiPiece piece(bytes, piece_limit_);
    const bool in_place = mine == static_cast<std::byte*>(all) + rank_ * bytes;
    MPI_Allgather(in_place ? MPI_IN_PLACE : mine, piece.count(), piece.type(), all, piece.count(),
                  piece.type(), MPI_COMM_WORLD);
  }

  int rank_;
  int size_;
  int64_t piece_limit_;
  OnAbort on_abort_;
  std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace

Result<std::unique_ptr<Collectives>> init_mpi_collectives(
    int expected_ranks, int64_t piece_limit, std::function<void(std::string_view)> on_abort) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) return failed_precondition("MPI is initialised already in this process");
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    return internal_error("MPI_Init_thread failed");
  }
  if (provided < MPI_THREAD_FUNNELED) {
    return failed_precondition("this MPI gives thread level " + to_text(provided) +
                               ": needs MPI_THREAD_FUNNELED");
  }
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != expected_ranks) {
    return failed_precondition("MPI world has " + to_text(size) + " ranks: expected " +
                               to_text(expected_ranks));
  }
  return std::unique_ptr<Collectives>(
      std::make_unique<MpiCollectives>(rank, size, piece_limit, std::move(on_abort)));
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int bytes = 0;
  MPI_Get_library_version(text, &bytes);
  const std::string all(text, static_cast<size_t>(bytes));
  return all.substr(0, all.find(','));
}

void finalize_mpi() {
  int initialised = 0, finalized = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalized);
  if (initialised != 0 && finalized == 0) MPI_Finalize();
}

}  // namespace swax
