#include "kernels/cpu/cpu_backend.h"

#include <cpuid.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "proto/base/ids.h"
#include "proto/base/text.h"

namespace swax::cpu {
namespace {

class CpuStream final : public Stream {};

void free_block(void*, void* data, int64_t) { std::free(data); }

// "avx2,fma,avx512f,..." of what decides the code path of BLAS on this machine.
std::string cpu_flags() {
  struct Flag {
    const char* name;
    bool set;
  };
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  unsigned b7 = 0;
  unsigned d7 = 0;
  unsigned a71 = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return "unknown";
  const bool has_fma = (c >> 12 & 1U) != 0;
  if (__get_cpuid_count(7, 0, &a, &b7, &c, &d7) == 0) return "unknown";
  __get_cpuid_count(7, 1, &a71, &b, &c, &d);
  const Flag flags[] = {{"avx2", (b7 >> 5 & 1U) != 0},         {"fma", has_fma},
                        {"avx512f", (b7 >> 16 & 1U) != 0},     {"avx512dq", (b7 >> 17 & 1U) != 0},
                        {"avx512bw", (b7 >> 30 & 1U) != 0},    {"avx512vl", (b7 >> 31 & 1U) != 0},
                        {"avx512_bf16", (a71 >> 5 & 1U) != 0}, {"amx_bf16", (d7 >> 22 & 1U) != 0}};
  std::string out;
  for (const Flag& f : flags) {
    if (!f.set) continue;
    if (!out.empty()) out += ',';
    out += f.name;
  }
  return out;
}

// "2.36" from "glibc 2.36".
std::string libc_version() {
  char text[64] = {};
  if (confstr(_CS_GNU_LIBC_VERSION, text, sizeof(text)) == 0) return "unknown";
  const char* space = std::strchr(text, ' ');
  return space == nullptr ? text : space + 1;
}

}  // namespace

Status need_data(const char* op, std::initializer_list<const Tensor*> tensors, bool needs_f32) {
  for (const Tensor* t : tensors) {
    if (!t->empty() && t->data == nullptr) {
      return invalid_argument(std::string(op) + ": a tensor has no memory");
    }
    if (t->dtype == DType::kBF16 && needs_f32) {
      return invalid_argument(std::string(op) + ": the CPU backend takes f32 only");
    }
  }
  return ok();
}

CpuBackend::CpuBackend(const BackendOptions& options)
    : options_(options),
      form_(options.plain_gemm ? GemmForm::kPlain : GemmForm::kBlas),
      pool_(options.compute_threads) {
  if (form_ == GemmForm::kBlas) blas_init();
}

Result<Buffer> CpuBackend::allocate(int64_t bytes, MemoryKind) {
  constexpr int64_t kAlign = 256;
  if (bytes < 0) return invalid_argument("allocate: bytes=" + to_text(bytes) + ": must be >= 0");
  const int64_t rounded = round_up(bytes < 1 ? 1 : bytes, kAlign);
  void* data = std::aligned_alloc(kAlign, static_cast<size_t>(rounded));
  if (data == nullptr) {
    const int64_t free = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    return resource_exhausted("allocate: " + bytes_text(bytes) + " wanted, " + bytes_text(free) +
                              " of memory free");
  }
  return Buffer(data, bytes, &free_block, nullptr);
}

Result<std::unique_ptr<Stream>> CpuBackend::make_stream() {
  return std::unique_ptr<Stream>(std::make_unique<CpuStream>());
}

Status CpuBackend::copy(Stream&, Tensor to, Tensor from) {
  if (to.dtype != from.dtype || to.elements() != from.elements()) {
    return invalid_argument("copy: to and from must have one dtype and one size");
  }
  if (to.elements() == 0) return ok();
  SWAX_TRY(need_data("copy", {&to, &from}, false));
  if (to.contiguous() && from.contiguous()) {
    std::memmove(to.data, from.data, static_cast<size_t>(to.bytes()));
    return ok();
  }
  if (to.dims[0] != from.dims[0]) {
    return invalid_argument("copy: strided views must have the same rows");
  }
  const int64_t item = dtype_bytes(to.dtype);
  for (int64_t r = 0; r < to.dims[0]; ++r) {
    std::memmove(static_cast<char*>(to.data) + r * to.row_stride * item,
                 static_cast<const char*>(from.data) + r * from.row_stride * item,
                 static_cast<size_t>(to.row_elements() * item));
  }
  return ok();
}

std::string CpuBackend::fingerprint() const {
  const std::string gemm =
      form_ == GemmForm::kPlain ? std::string("gemm=plain") : "openblas=" + blas_text();
  return "cpu glibc=" + libc_version() + " " + gemm + " flags=" + cpu_flags() +
         " threads-independent";
}

}  // namespace swax::cpu
