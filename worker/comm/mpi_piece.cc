#include "worker/comm/mpi_piece.h"

#include <algorithm>

#include "proto/base/check.h"

namespace swax {

MpiPiece::MpiPiece(int64_t bytes, int64_t limit) {
  SWAX_CHECK(bytes >= 0);
  if (bytes <= limit) {
    count_ = static_cast<int>(bytes);
    return;
  }
  // Blocks of 1 MiB (at most the limit) reach 2^51 bytes.
  const int block_bytes = static_cast<int>(std::min<int64_t>(limit, 1 << 20));
  const int blocks = static_cast<int>(bytes / block_bytes);
  const int rest = static_cast<int>(bytes % block_bytes);
  MPI_Datatype block = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(block_bytes, MPI_BYTE, &block);
  const int counts[] = {blocks, rest};
  const MPI_Aint offsets[] = {0, static_cast<MPI_Aint>(bytes - rest)};
  const MPI_Datatype types[] = {block, MPI_BYTE};
  MPI_Type_create_struct(2, counts, offsets, types, &type_);
  MPI_Type_commit(&type_);
  MPI_Type_free(&block);
  count_ = 1;
  made_ = true;
}

MpiPiece::~MpiPiece() {
  if (made_) MPI_Type_free(&type_);
}

}  // namespace swax
