// Matrix product of one piece of work: c_MN = op(a) op(b) (+ c_MN), by OpenBLAS on one thread or by
// plain loops. The plain form adds the K products of an element in rising order with one fused
// multiply-add each, starting at 0 (at c when accumulate), so its bits depend on IEEE arithmetic
// alone. Neither form allocates; both overwrite c without reading it unless accumulate.
// Threads: pure functions; any number of threads may call them.
#pragma once

#include <cstdint>
#include <string>

namespace swax::cpu {

enum class GemmForm { kBlas, kPlain };

struct MatMul {
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool trans_a = false;  // a is stored [K, M]
  bool trans_b = false;  // b is stored [N, K]
  bool accumulate = false;
};
void matmul(GemmForm form, const MatMul& x);
void matmul_plain(const MatMul& x);

// One thread in OpenBLAS, before its first call and checked.
void blas_init();
std::string blas_text();  // "0.3.21/SkylakeX"

}  // namespace swax::cpu
