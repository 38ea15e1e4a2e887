#include "kernels/cuda/self_test_rig.h"

#include <bit>
#include <cstring>

#include "proto/base/text.h"

namespace swax::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{32} << 20;
constexpr int64_t kAlign = 256;
constexpr int kNaNByte = 0xff;  // NaN as f32 and as bf16

uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace

float round_to_bf16(float x) { return from_bf16(to_bf16(x)); }

Result<SelfTestRig> SelfTestRig::create(Backend& backend) {
  SelfTestRig rig(backend);
  SWAX_ASSIGN(rig.device_, backend.allocate(kSlabBytes, MemoryKind::kDevice));
  SWAX_ASSIGN(rig.host_, backend.allocate(kSlabBytes, MemoryKind::kPinned));
  SWAX_ASSIGN(rig.stream_, backend.make_stream());
  return rig;
}

void SelfTestRig::reset() {
  used_ = 0;
  std::memset(host_.data(), kNaNByte, static_cast<size_t>(kSlabBytes));
}

// Past the end of the slab: no memory, and upload() refuses the case.
Tensor SelfTestRig::place(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = Tensor::of(nullptr, dtype, dims);
  const int64_t begin = used_;
  used_ += (t.bytes() + kAlign - 1) / kAlign * kAlign;
  if (used_ <= kSlabBytes) t.data = static_cast<std::byte*>(device_.data()) + begin;
  return t;
}

std::byte* SelfTestRig::mirror(const Tensor& t) const {
  return static_cast<std::byte*>(host_.data()) +
         (static_cast<std::byte*>(t.data) - static_cast<std::byte*>(device_.data()));
}

Tensor SelfTestRig::tensor(DType dtype, std::initializer_list<int64_t> dims,
                           std::span<const float> values) {
  const Tensor t = place(dtype, dims);
  if (values.empty() || t.data == nullptr) return t;
  SWAX_CHECK(static_cast<int64_t>(values.size()) == t.elements());
  if (dtype == DType::kF32) {
    std::memcpy(mirror(t), values.data(), values.size_bytes());
    return t;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = to_bf16(values[i]);
    std::memcpy(mirror(t) + 2 * i, &bits, sizeof bits);
  }
  return t;
}

Tensor SelfTestRig::integers(std::span<const int32_t> values) {
  const Tensor t = place(DType::kI32, {static_cast<int64_t>(values.size())});
  if (t.data != nullptr) std::memcpy(mirror(t), values.data(), values.size_bytes());
  return t;
}

Status SelfTestRig::move(bool to_device) {
  const Tensor on_device = Tensor::of(device_.data(), DType::kU8, {used_});
  const Tensor on_host = Tensor::of(host_.data(), DType::kU8, {used_});
  return to_device ? backend_->copy(*stream_, on_device, on_host)
                   : backend_->copy(*stream_, on_host, on_device);
}

Status SelfTestRig::upload() {
  if (used_ > kSlabBytes) {
    return resource_exhausted("self test: a case needs " + bytes_text(used_));
  }
  return move(true);
}

Status SelfTestRig::download() {
  SWAX_TRY(move(false));
  return backend_->sync(*stream_);
}

std::vector<float> SelfTestRig::values(const Tensor& t) const {
  std::vector<float> out(static_cast<size_t>(t.elements()));
  if (t.dtype == DType::kF32) {
    std::memcpy(out.data(), mirror(t), out.size() * sizeof(float));
    return out;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, mirror(t) + 2 * i, sizeof bits);
    out[i] = from_bf16(bits);
  }
  return out;
}

}  // namespace swax::cuda
