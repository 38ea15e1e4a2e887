// What the kernels of the mLSTM's backward pass share: a ring of slabs, 64 wide along the reduction
// of a product, between one copying thread and two computing warpgroups, and products of slabs up
// to 256 columns wide. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/hopper_ring.cuh"

namespace swax::cuda {

constexpr int kSlab = 64;                             // columns of a box, and rows
constexpr int kBoxBytes = kSlab * kSlab * 2;          // a box is 64 x 64
constexpr int kRowSlabBytes = kTileRows * kSlab * 2;  // left operand: 128 rows

// d (+)= A B over the 64 of a slab. A: 128 rows, of which this warpgroup takes 64 ('part' 0 or 1);
// B: 2 kCount columns. kK: rows are those of the operand; kMN: rows are the reduction, blocks of 64
// columns follow one another.
template <Major kA, Major kB, int kCount>
__device__ __forceinline__ void slab_product(float (&d)[kCount], uint32_t slab, uint32_t part,
                                             bool add) {
  constexpr uint32_t kStepA = kA == Major::kK ? 32 : 2048;
  constexpr uint32_t kStepB = kB == Major::kK ? 32 : 2048;
  const uint64_t a = operand<kA>(slab + part * kBoxBytes, kSlab);
  const uint64_t b = operand<kB>(slab + kRowSlabBytes, kSlab);
#pragma unroll
  for (uint32_t k = 0; k < kSlab / 16; ++k) {
    mma<kA, kB>(d, further(a, k * kStepA), further(b, k * kStepB), add || k != 0 ? 1 : 0);
  }
}

// A ring of slabs: A, then B.
template <int kStages, int kBytes>
using SlabRing = TileRing<kStages, Release::kLane, kBytes>;
template <int kStages, int kBytes>
using SlabReader = RingReader<kStages, Release::kLane, kBytes>;

// Boxes that lie one behind the other in a slab: box j begins at element (x + j dx) of row
// (z + j dz).
struct Boxes {
  const TensorMap* map;
  int x, head, z;
  int dx, dz;
};

template <int kStages, int kBytes>
struct SlabWriter {
  SlabRing<kStages, kBytes>& ring;
  RingPlace<kStages> place = {};

  template <int kA, int kB>
  __device__ __forceinline__ void put(const Boxes& a, const Boxes& b) {
    fill<kA, kB>(a, b, 0);
    place.next();
  }
  // Behind the boxes also a row of `bytes`.
  template <int kA, int kB>
  __device__ __forceinline__ void put(const Boxes& a, const Boxes& b, const void* row,
                                      uint32_t bytes) {
    fill<kA, kB>(a, b, bytes);
    bulk_load(ring.tile[place.stage] + (kA + kB) * kBoxBytes, row, bytes, &ring.full[place.stage]);
    place.next();
  }

 private:
  // The boxes of the next slab, where `more` bytes come too.
  template <int kA, int kB>
  __device__ __forceinline__ void fill(const Boxes& a, const Boxes& b, uint32_t more) {
    const int stage = place.stage;
    barrier_wait(&ring.empty[stage], place.phase ^ 1U);
    fence_to_async();  // a slab's row is read by ordinary loads
    barrier_expect(&ring.full[stage], (kA + kB) * kBoxBytes + more);
    copy<kA>(ring.tile[stage], a, &ring.full[stage]);
    copy<kB>(ring.tile[stage] + kA * kBoxBytes, b, &ring.full[stage]);
  }
  template <int kCount>
  __device__ __forceinline__ static void copy(unsigned char* to, const Boxes& from,
                                              uint64_t* full) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      tile_load(to + j * kBoxBytes, *from.map, from.x + j * from.dx, from.head,
                from.z + j * from.dz, full);
    }
  }
};

}  // namespace swax::cuda
