// One piece of a collective as an MPI datatype: MPI counts are ints, our pieces may have more than
// 2^31 bytes. Pieces up to `limit` bytes travel as that many MPI_BYTE; larger ones as one element
// of a type of blocks and a rest. Internal to worker/comm. Fails by MPI's own error handler (it
// ends the job).
#pragma once

#include <mpi.h>

#include <cstdint>

namespace swax {

class MpiPiece {
 public:
  MpiPiece(int64_t bytes, int64_t limit);
  ~MpiPiece();
  MpiPiece(const MpiPiece&) = delete;
  MpiPiece& operator=(const MpiPiece&) = delete;
  MPI_Datatype type() const { return type_; }
  int count() const { return count_; }

 private:
  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 0;
  bool made_ = false;
};

}  // namespace swax
