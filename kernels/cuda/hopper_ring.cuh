// A ring of tiles, of 128 x 128 bf16 unless kBytes says otherwise, between one copying thread and
// two computing warpgroups: both walk the same list of tiles. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/hopper_tile.cuh"

namespace swax::cuda {

// Who says that the computing side has done with a tile: one lane of each of its 8 warps, behind
// __syncwarp, or every lane. The memory model orders both. Every lane where ordinary loads read
// what an ordinary store overwrites next: racecheck of compute-sanitizer does not follow an order
// through __syncwarp and the arrival of another lane, and reports a hazard (seen on a kernel of 30
// lines that does nothing else). Not measurable beside the products of a tile.
enum class Release { kWarp, kLane };
template <Release kBy>
constexpr uint32_t kReleases = kBy == Release::kWarp ? 8 : 256;
template <Release kBy>
__device__ __forceinline__ void release(uint64_t* empty) {
  if constexpr (kBy == Release::kWarp) {
    release(empty);
  } else {
    barrier_arrive(empty);
  }
}

template <int kStages, Release kBy = Release::kWarp, int kBytes = kTileBytes>
struct TileRing {
  unsigned char tile[kStages][kBytes];
  uint64_t full[kStages];
  uint64_t empty[kStages];

  // One thread, before the fence of barrier_init. fillers: arrivals that fill a tile.
  __device__ void init(uint32_t fillers = 1) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], fillers);
      barrier_init(&empty[i], kReleases<kBy>);
    }
  }
};

// Where one side is in the list.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    phase ^= stage == 0 ? 1U : 0U;
  }
};

template <int kStages, Release kBy = Release::kWarp>
struct RingWriter {
  TileRing<kStages, kBy>& ring;
  RingPlace<kStages> place = {};
  // Waits until the next tile may be written.
  __device__ __forceinline__ int room() {
    barrier_wait(&ring.empty[place.stage], place.phase ^ 1U);
    return place.stage;
  }
  // Columns column .. column + 127 of rows token .. token + 127.
  __device__ __forceinline__ void put(const TensorMap& map, int column, int head, int token) {
    const int stage = room();
    barrier_expect(&ring.full[stage], kTileBytes);
    load_tile(ring.tile[stage], map, column, head, token, kTileRows, &ring.full[stage]);
    place.next();
  }
};

// Tiles are taken in order and given back in order.
template <int kStages, Release kBy = Release::kWarp, int kBytes = kTileBytes>
struct RingReader {
  TileRing<kStages, kBy, kBytes>& ring;
  RingPlace<kStages> taken = {};
  RingPlace<kStages> given = {};
  int held = 0;

  __device__ __forceinline__ uint32_t take() {
    barrier_wait(&ring.full[taken.stage], taken.phase);
    const uint32_t address = shared_address(ring.tile[taken.stage]);
    taken.next();
    ++held;
    mma_fence();
    return address;
  }
  // Takes and gives tiles that are not needed.
  __device__ __forceinline__ void skip(int count) {
    for (int i = 0; i < count; ++i) {
      barrier_wait(&ring.full[taken.stage], taken.phase);
      taken.next();
      ++held;
      give();
    }
  }
  // Gives the oldest tile back, once the products on it have ended.
  __device__ __forceinline__ void give() {
    release<kBy>(&ring.empty[given.stage]);
    given.next();
    --held;
  }
  // After the products on a tile were issued: ends and gives the one before.
  __device__ __forceinline__ void issued() {
    mma_commit();
    if (held < 2) return;
    mma_wait<1>();
    give();
  }
  // Ends all products and gives all tiles.
  __device__ __forceinline__ void drain() {
    mma_wait<0>();
    while (held > 0) give();
  }
};

// Places for tiles that a block keeps through a whole piece of work; with two, the next piece's are
// copied while this one runs.
template <int kPlaces, Release kBy = Release::kWarp>
struct OwnTiles {
  uint64_t full[kPlaces];
  uint64_t empty[kPlaces];

  __device__ void init() {  // one thread, before the fence of barrier_init
    for (int i = 0; i < kPlaces; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kReleases<kBy>);
    }
  }
  // The n-th piece of the block. The copying side waits for room, announces, copies; the computing
  // side waits and, when it has done, releases.
  __device__ __forceinline__ uint64_t* expect(int n, uint32_t bytes) {
    barrier_wait(&empty[n % kPlaces], static_cast<uint32_t>(n / kPlaces + 1) % 2);
    barrier_expect(&full[n % kPlaces], bytes);
    return &full[n % kPlaces];
  }
  __device__ __forceinline__ void wait(int n) {
    barrier_wait(&full[n % kPlaces], static_cast<uint32_t>(n / kPlaces) % 2);
  }
  __device__ __forceinline__ void done(int n) { release<kBy>(&empty[n % kPlaces]); }
};

// The two roles of a block of kRoleThreads, once its barriers are there: `produce` runs in the
// first warpgroup, `consume` in the two others.
template <typename Produce, typename Consume>
__device__ __forceinline__ void run_roles(const Produce& produce, const Consume& consume) {
  if (threadIdx.x < 128) {
    registers_shrink<24>();
    produce();
  } else {
    registers_grow<240>();
    consume();
  }
}

// 0 or 1: which of the two computing warpgroups runs.
__device__ __forceinline__ uint32_t computing_part() {
  return static_cast<uint32_t>(uniform(static_cast<int>(threadIdx.x / 128)) - 1);
}

// The dynamic shared memory of a block, aligned as the swizzle needs it.
template <typename T>
__device__ __forceinline__ T& shared_block() {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (shared_address(shared) % 1024 != 0) __trap();
  return *reinterpret_cast<T*>(shared);
}

}  // namespace swax::cuda
