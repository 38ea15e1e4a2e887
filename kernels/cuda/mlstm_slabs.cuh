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

// d (64 x 256) (+)= A (64 x 16) B (16 x 256); registers as in hopper.cuh.
template <Major kA, Major kB>
__device__ __forceinline__ void mma(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
      "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "
      "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "
      "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, p, 1, 1, %131, %132;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
        "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
        "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
        "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]),
        "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),
        "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
        "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),
        "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "l"(a), "l"(b), "r"(accumulate), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));
}

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
struct SlabRing {
  unsigned char slab[kStages][kBytes];
  uint64_t full[kStages];
  uint64_t empty[kStages];

  __device__ void init() {  // one thread, before the fence of barrier_init
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kReleases<Release::kLane>);
    }
  }
};

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
    const int stage = place.stage;
    barrier_wait(&ring.empty[stage], place.phase ^ 1U);
    barrier_expect(&ring.full[stage], (kA + kB) * kBoxBytes);
    copy<kA>(ring.slab[stage], a, &ring.full[stage]);
    copy<kB>(ring.slab[stage] + kA * kBoxBytes, b, &ring.full[stage]);
    place.next();
  }
  // Behind the boxes also a row of `bytes`.
  template <int kA, int kB>
  __device__ __forceinline__ void put(const Boxes& a, const Boxes& b, const void* row,
                                      uint32_t bytes) {
    const int stage = place.stage;
    barrier_wait(&ring.empty[stage], place.phase ^ 1U);
    barrier_expect(&ring.full[stage], (kA + kB) * kBoxBytes + bytes);
    copy<kA>(ring.slab[stage], a, &ring.full[stage]);
    copy<kB>(ring.slab[stage] + kA * kBoxBytes, b, &ring.full[stage]);
    bulk_load(ring.slab[stage] + (kA + kB) * kBoxBytes, row, bytes, &ring.full[stage]);
    place.next();
  }

 private:
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

template <int kStages, int kBytes>
struct SlabReader {
  SlabRing<kStages, kBytes>& ring;
  RingPlace<kStages> taken = {};
  RingPlace<kStages> given = {};
  int held = 0;

  __device__ __forceinline__ uint32_t take() {
    barrier_wait(&ring.full[taken.stage], taken.phase);
    const uint32_t address = shared_address(ring.slab[taken.stage]);
    taken.next();
    ++held;
    mma_fence();
    return address;
  }
  __device__ __forceinline__ void give() {
    barrier_arrive(&ring.empty[given.stage]);
    given.next();
    --held;
  }
  // After the products on a slab were issued: ends and gives the one before.
  __device__ __forceinline__ void issued() {
    mma_commit();
    if (held < 2) return;
    mma_wait<1>();
    give();
  }
  __device__ __forceinline__ void drain() {
    mma_wait<0>();
    while (held > 0) give();
  }
};

}  // namespace swax::cuda
