// Element-wise ops, the digest, and the probe of the matrix products.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

__device__ __forceinline__ int64_t first_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t index_step() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

// Blocks of the vector kernels below own kEach accesses of each of their threads and end: many
// short blocks keep the memory busier than few that stride.
constexpr int kEach = 4;
__device__ __forceinline__ int64_t owned(int k) {
  return (static_cast<int64_t>(blockIdx.x) * kEach + k) * kThreads + threadIdx.x;
}
unsigned owners(int64_t accesses) {
  return static_cast<unsigned>(div_ceil(accesses, int64_t{kEach} * kThreads));
}

__global__ void fill_kernel(float* x, float value, int64_t n) {
  for (int64_t i = first_index(); i < n; i += index_step()) x[i] = value;
}
__global__ void __launch_bounds__(kThreads) fill4_kernel(float4* x, float value, int64_t n) {
  const float4 v = make_float4(value, value, value, value);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (owned(k) < n) x[owned(k)] = v;
  }
}

__global__ void add_kernel(const float* a, const float* b, float* out, int64_t n) {
  for (int64_t i = first_index(); i < n; i += index_step()) out[i] = a[i] + b[i];
}
__global__ void __launch_bounds__(kThreads, 4)
    add4_kernel(const float4* a, const float4* b, float4* out, int64_t n) {
  float4 x[kEach];
  float4 y[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (owned(k) >= n) continue;
    x[k] = a[owned(k)];
    y[k] = b[owned(k)];
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (owned(k) >= n) continue;
    out[owned(k)] = make_float4(x[k].x + y[k].x, x[k].y + y[k].y, x[k].z + y[k].z, x[k].w + y[k].w);
  }
}

// Vectors of eight; the last n % 8 elements one by one.
template <bool kAligned, typename To, typename From>
__global__ void __launch_bounds__(kThreads, 4) cast_kernel(const From* from, To* to, int64_t n) {
  float x[kEach][kVec];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = owned(k) * kVec;
    if (kAligned && i + kVec <= n) {
      load8<true>(from, i, n, x[k]);
    } else {
      load8<false>(from, i, n, x[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = owned(k) * kVec;
    if (kAligned && i + kVec <= n) {
      store8<true>(to, i, n, x[k]);
    } else {
      store8<false>(to, i, n, x[k]);
    }
  }
}

__device__ __forceinline__ uint64_t mix_bits(uint64_t x) {  // as proto/base/hash.h
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}
__device__ __forceinline__ uint64_t digest_mix(uint64_t salt, uint64_t name_hash, uint64_t element,
                                               uint32_t bits) {
  return mix_bits(mix_bits(name_hash + salt * (element + 1)) ^
                  (uint64_t{bits} * 0xff51afd7ed558ccdULL + salt));
}
__device__ __forceinline__ uint64_t lanes_sum_u64(uint64_t x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

constexpr uint64_t kSalt0 = 0x9e3779b97f4a7c15ULL;
constexpr uint64_t kSalt1 = 0xd1b54a32d192ed03ULL;

// Integer sums modulo 2^64: atomics in any order give the same bits. About 55 integer operations
// an element outside the multiplier: they, not the reads, set the time.
// kElements 4: 16-byte reads, the last n % 4 elements by the first threads.
template <int kElements>
__global__ void __launch_bounds__(kThreads, 4)
    digest_kernel(const uint32_t* x, int64_t n, uint64_t name_hash, uint64_t first_element,
                  unsigned long long* sums) {
  uint64_t sum0 = 0;
  uint64_t sum1 = 0;
  const auto add = [&](int64_t i, uint32_t bits) {
    const uint64_t element = first_element + static_cast<uint64_t>(i);
    sum0 += digest_mix(kSalt0, name_hash, element, bits);
    sum1 += digest_mix(kSalt1, name_hash, element, bits);
  };
  const int64_t groups = n / kElements;
  for (int64_t g = first_index(); g < groups; g += index_step()) {
    if constexpr (kElements == 4) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(x) + g);
      add(4 * g, v.x);
      add(4 * g + 1, v.y);
      add(4 * g + 2, v.z);
      add(4 * g + 3, v.w);
    } else {
      add(g, x[g]);
    }
  }
  const int64_t rest = groups * kElements + first_index();
  if (rest < n) add(rest, x[rest]);
  sum0 = lanes_sum_u64(sum0);
  sum1 = lanes_sum_u64(sum1);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(sums, static_cast<unsigned long long>(sum0));
    atomicAdd(sums + 1, static_cast<unsigned long long>(sum1));
  }
}

template <typename T>
__global__ void probe_kernel(T* x, int64_t n, uint32_t seed) {
  for (int64_t i = first_index(); i < n; i += index_step()) {
    const uint64_t bits = mix_bits((static_cast<uint64_t>(seed) << 48) + static_cast<uint64_t>(i));
    from_f32(x + i, static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31F);
  }
}

__global__ void compare_kernel(const uint32_t* a, const uint32_t* b, int64_t n,
                               int32_t* different) {
  bool any = false;
  for (int64_t i = first_index(); i < n; i += index_step()) any = any || a[i] != b[i];
  if (any) *different = 1;  // every writer writes the same
}
__global__ void compare_bytes_kernel(const uint8_t* a, const uint8_t* b, int64_t n,
                                     int32_t* different) {
  bool any = false;
  for (int64_t i = first_index(); i < n; i += index_step()) any = any || a[i] != b[i];
  if (any) *different = 1;
}

bool aligned16(const void* p) { return reinterpret_cast<uint64_t>(p) % 16 == 0; }

template <typename To, typename From>
void launch_cast(cudaStream_t stream, const CastArgs& a) {
  const int64_t n = a.to.elements();
  const unsigned blocks = owners(div_ceil(n, kVec));
  if (aligned16(a.from.data) && aligned16(a.to.data)) {
    cast_kernel<true, To, From>
        <<<blocks, kThreads, 0, stream>>>(data_of<From>(a.from), data_of<To>(a.to), n);
  } else {
    cast_kernel<false, To, From>
        <<<blocks, kThreads, 0, stream>>>(data_of<From>(a.from), data_of<To>(a.to), n);
  }
}

}  // namespace

Status CudaBackend::fill(Stream& s, const FillArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("fill", {&a.x}));
  const int64_t n = a.x.elements();
  if (aligned16(a.x.data) && n % 4 == 0) {
    fill4_kernel<<<owners(n / 4), kThreads, 0, raw(s)>>>(data_of<float4>(a.x), a.value, n / 4);
  } else {
    fill_kernel<<<blocks_for(n), kThreads, 0, raw(s)>>>(a.x.f32(), a.value, n);
  }
  return last_launch("fill");
}

Status CudaBackend::add(Stream& s, const AddArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("add", {&a.a, &a.b, &a.out}));
  const int64_t n = a.out.elements();
  if (aligned16(a.a.data) && aligned16(a.b.data) && aligned16(a.out.data) && n % 4 == 0) {
    add4_kernel<<<owners(n / 4), kThreads, 0, raw(s)>>>(
        data_of<const float4>(a.a), data_of<const float4>(a.b), data_of<float4>(a.out), n / 4);
  } else {
    add_kernel<<<blocks_for(n), kThreads, 0, raw(s)>>>(a.a.f32(), a.b.f32(), a.out.f32(), n);
  }
  return last_launch("add");
}

Status CudaBackend::cast(Stream& s, const CastArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("cast", {&a.from, &a.to}));
  if (a.to.dtype == DType::kBF16) {
    launch_cast<bf16, float>(raw(s), a);
  } else {
    launch_cast<float, bf16>(raw(s), a);
  }
  return last_launch("cast");
}

Status CudaBackend::digest(Stream& s, const DigestArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("digest", {&a.x, &a.sums}));
  const int64_t n = a.x.elements();
  const auto* x = data_of<const uint32_t>(a.x);
  auto* sums = data_of<unsigned long long>(a.sums);
  const unsigned blocks = blocks_for(n, 16 * kThreads);
  if (aligned16(x)) {
    digest_kernel<4><<<blocks, kThreads, 0, raw(s)>>>(x, n, a.name_hash, a.first_element, sums);
  } else {
    digest_kernel<1><<<blocks, kThreads, 0, raw(s)>>>(x, n, a.name_hash, a.first_element, sums);
  }
  return last_launch("digest");
}

Status fill_probe(cudaStream_t stream, DType dtype, void* data, int64_t elements, uint32_t seed) {
  const unsigned blocks = blocks_for(elements);
  if (dtype == DType::kBF16) {
    probe_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<bf16*>(data), elements, seed);
  } else {
    probe_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<float*>(data), elements, seed);
  }
  return last_launch("gemm probe");
}

Status compare_bytes(cudaStream_t stream, const void* a, const void* b, int64_t bytes,
                     int32_t* different) {
  if (bytes % 4 == 0) {
    compare_kernel<<<blocks_for(bytes / 4), kThreads, 0, stream>>>(
        static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), bytes / 4, different);
  } else {
    compare_bytes_kernel<<<blocks_for(bytes), kThreads, 0, stream>>>(
        static_cast<const uint8_t*>(a), static_cast<const uint8_t*>(b), bytes, different);
  }
  return last_launch("gemm compare");
}

}  // namespace swax::cuda
