// SwiGLU: element-wise over rows.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

// Calls body(row, col) for one vector of eight columns of [rows, cols] a thread.
struct Grid {
  int64_t rows;
  int64_t cols;
};
constexpr int64_t packs_of(int64_t cols) { return (cols + kVec - 1) / kVec; }

// a / b; 64-bit division takes many times the instructions of the 32-bit one.
__device__ __forceinline__ int64_t divided(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}
template <typename Body>
__device__ __forceinline__ void for_vector(Grid g, Body body) {
  const int64_t packs = (g.cols + kVec - 1) / kVec;
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e >= g.rows * packs) return;
  const int64_t row = divided(e, packs);
  body(row, (e - row * packs) * kVec);
}
unsigned blocks_of(Grid g) {
  return static_cast<unsigned>(div_ceil(g.rows * packs_of(g.cols), int64_t{kThreads}));
}

template <typename X>
struct Swiglu {
  const X* a;
  const X* b;
  X* s;
  int64_t a_stride, b_stride, s_stride;
  Grid grid;
};

template <bool kAligned, typename X>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(Swiglu<X> x) {
  for_vector(x.grid, [&](int64_t row, int64_t col) {
    float a[kVec];
    float b[kVec];
    float s[kVec];
    load8<kAligned>(x.a + row * x.a_stride, col, x.grid.cols, a);
    load8<kAligned>(x.b + row * x.b_stride, col, x.grid.cols, b);
#pragma unroll
    for (int i = 0; i < kVec; ++i) s[i] = a[i] * sigmoid_of<X>(a[i]).value * b[i];
    store8<kAligned>(x.s + row * x.s_stride, col, x.grid.cols, s);
  });
}

template <typename X>
struct SwigluBackward {
  const X* a;
  const X* b;
  const X* ds;
  X* da;
  X* db;
  int64_t a_stride, b_stride, ds_stride, da_stride, db_stride;
  Grid grid;
};

template <bool kAligned, typename X>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(SwigluBackward<X> x) {
  for_vector(x.grid, [&](int64_t row, int64_t col) {
    float a[kVec];
    float b[kVec];
    float ds[kVec];
    float da[kVec];
    float db[kVec];
    load8<kAligned>(x.a + row * x.a_stride, col, x.grid.cols, a);
    load8<kAligned>(x.b + row * x.b_stride, col, x.grid.cols, b);
    load8<kAligned>(x.ds + row * x.ds_stride, col, x.grid.cols, ds);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Sigmoid sig = sigmoid_of<X>(a[i]);
      const float slope = sig.value * fmaf(a[i], sig.rest, 1.0F);
      da[i] = ds[i] * b[i] * slope;
      db[i] = ds[i] * a[i] * sig.value;
    }
    store8<kAligned>(x.da + row * x.da_stride, col, x.grid.cols, da);
    store8<kAligned>(x.db + row * x.db_stride, col, x.grid.cols, db);
  });
}

template <typename X>
void launch_swiglu(cudaStream_t stream, const SwigluArgs& a) {
  const Grid grid{a.a_TF.dims[0], a.a_TF.dims[1]};
  const Swiglu<X> x{data_of<X>(a.a_TF),
                    data_of<X>(a.b_TF),
                    data_of<X>(a.s_TF),
                    row_stride(a.a_TF),
                    row_stride(a.b_TF),
                    row_stride(a.s_TF),
                    grid};
  const unsigned blocks = blocks_of(grid);
  const bool vectors =
      grid.cols % kVec == 0 && vector_rows(a.a_TF) && vector_rows(a.b_TF) && vector_rows(a.s_TF);
  if (vectors) {
    swiglu_kernel<true><<<blocks, kThreads, 0, stream>>>(x);
  } else {
    swiglu_kernel<false><<<blocks, kThreads, 0, stream>>>(x);
  }
}

template <typename X>
void launch_swiglu_backward(cudaStream_t stream, const SwigluBackwardArgs& a) {
  const Grid grid{a.a_TF.dims[0], a.a_TF.dims[1]};
  const SwigluBackward<X> x{data_of<X>(a.a_TF),
                            data_of<X>(a.b_TF),
                            data_of<X>(a.ds_TF),
                            data_of<X>(a.da_TF),
                            data_of<X>(a.db_TF),
                            row_stride(a.a_TF),
                            row_stride(a.b_TF),
                            row_stride(a.ds_TF),
                            row_stride(a.da_TF),
                            row_stride(a.db_TF),
                            grid};
  const unsigned blocks = blocks_of(grid);
  const bool vectors = grid.cols % kVec == 0 && vector_rows(a.a_TF) && vector_rows(a.b_TF) &&
                       vector_rows(a.ds_TF) && vector_rows(a.da_TF) && vector_rows(a.db_TF);
  if (vectors) {
    swiglu_backward_kernel<true><<<blocks, kThreads, 0, stream>>>(x);
  } else {
    swiglu_backward_kernel<false><<<blocks, kThreads, 0, stream>>>(x);
  }
}

}  // namespace

Status CudaBackend::swiglu(Stream& s, const SwigluArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("swiglu", {&a.a_TF, &a.b_TF, &a.s_TF}));
  a.a_TF.dtype == DType::kBF16 ? launch_swiglu<bf16>(raw(s), a) : launch_swiglu<float>(raw(s), a);
  return last_launch("swiglu");
}

Status CudaBackend::swiglu_backward(Stream& s, const SwigluBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("swiglu_backward", {&a.a_TF, &a.b_TF, &a.ds_TF, &a.da_TF, &a.db_TF}));
  a.a_TF.dtype == DType::kBF16 ? launch_swiglu_backward<bf16>(raw(s), a)
                               : launch_swiglu_backward<float>(raw(s), a);
  return last_launch("swiglu_backward");
}

}  // namespace swax::cuda
