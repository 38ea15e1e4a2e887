#include "kernels/cuda/hopper_map.h"

#include <cuda_runtime.h>

#include <string>

#include "proto/base/text.h"

namespace swax::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// The driver's function, found at run time so that nothing links the driver.
Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kVersion = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                             kVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(entry);
}

constexpr int64_t kAlign = 16;
constexpr int kWidth = 64;  // elements of a 128-byte row

// Of three dimensions, the first of them contiguous; strides in bytes.
struct Layout {
  cuuint64_t dims[3];
  cuuint64_t strides[2];
  cuuint32_t box[3];
};

Status encode_map(const char* op, void* data, const Layout& l, CUtensorMap* map) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return internal_error("cuTensorMapEncodeTiled: not found in the driver");
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, l.dims, l.strides, l.box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return ok();
  return internal_error(std::string(op) + ": cuTensorMapEncodeTiled gave " +
                        to_text(static_cast<int64_t>(result)));
}

}  // namespace

bool has_tile_map(const Tensor& t) {
  return t.dtype == DType::kBF16 && t.rank == 3 && t.dims[2] % kWidth == 0 &&
         reinterpret_cast<uintptr_t>(t.data) % kAlign == 0 && t.row_stride * 2 % kAlign == 0;
}

Status tile_map(const char* op, const Tensor& t, int rows, CUtensorMap* map) {
  if (!has_tile_map(t)) {
    return invalid_argument(std::string(op) + ": a tensor is not aligned to 16 bytes");
  }
  const auto size = static_cast<cuuint64_t>(t.dims[2]);
  const Layout l{{size, static_cast<cuuint64_t>(t.dims[1]), static_cast<cuuint64_t>(t.dims[0])},
                 {size * 2, static_cast<cuuint64_t>(t.row_stride) * 2},
                 {kWidth, 1, static_cast<cuuint32_t>(rows)}};
  return encode_map(op, t.data, l, map);
}

Status rows_map(const char* op, const Tensor& t, int rows, int columns, CUtensorMap* map) {
  const int64_t stride = t.dims[0] > 1 ? t.row_stride : t.dims[1];
  const Layout l{
      {kWidth, static_cast<cuuint64_t>(t.dims[0]), static_cast<cuuint64_t>(t.dims[1] / kWidth)},
      {static_cast<cuuint64_t>(stride) * 2, kWidth * 2},
      {kWidth, static_cast<cuuint32_t>(rows), static_cast<cuuint32_t>(columns / kWidth)}};
  return encode_map(op, t.data, l, map);
}

}  // namespace swax::cuda
