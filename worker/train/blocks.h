// Owned device tensors: one allocation each, made before the first step and counted against the
// memory plan.
#pragma once

#include <initializer_list>
#include <utility>

#include "kernels/backend.h"

namespace swax {

struct Block {
  Buffer buffer;
  Tensor tensor;
};

// An empty block for zero elements.
inline Result<Block> make_block(Backend& backend, DType dtype, std::initializer_list<int64_t> dims,
                                MemoryKind kind = MemoryKind::kDevice) {
  Block block;
  Tensor shape = Tensor::of(nullptr, dtype, dims);
  if (shape.elements() == 0) return block;
  SWAX_ASSIGN(block.buffer, backend.allocate(shape.bytes(), kind));
  block.tensor = Tensor::of(block.buffer.data(), dtype, dims);
  return block;
}

// Elements [begin, begin + count) of a flat tensor.
inline Tensor flat_part(const Tensor& flat, int64_t begin, int64_t count) {
  SWAX_CHECK(begin >= 0 && count >= 0 && begin + count <= flat.elements());
  auto* data = static_cast<unsigned char*>(flat.data);
  if (data != nullptr) data += begin * dtype_bytes(flat.dtype);  // null: a plan without memory
  return Tensor::of(data, flat.dtype, {count});
}

}  // namespace swax
