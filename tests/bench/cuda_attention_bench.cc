// Times sliding-window attention and the mLSTM cell on a device: median of CUDA-event times, FLOPs
// as counted by the specs (backward of the attention: its 5 products, whatever a form repeats).
//   cuda_attention_bench [simple | once]    `simple` adds the simple forms, slower by far; `once`
//                                           runs each tuned form a single time, for a profiler
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/cuda/mlstm.h"
#include "kernels/cuda/swa.h"
#include "proto/base/check.h"

namespace swax {
namespace {

constexpr int64_t kTokens = 16384;

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void must(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.to_string().c_str());
  std::exit(1);
}

// Values of order 1 from a hash of the index: no zeros, no pattern that a power limit would like.
std::vector<float> noise(int64_t count, uint64_t seed) {
  std::vector<float> out(static_cast<size_t>(count));
  uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (float& e : out) {
    float sum = 0.0F;
    for (int i = 0; i < 3; ++i) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      sum += static_cast<float>(x >> 40) * 0x1p-24F - 0.5F;
    }
    e = 2.0F * sum;
  }
  return out;
}

uint64_t next_seed = 1;

// Device memory for the life of the program.
Tensor device(DType dtype, std::initializer_list<int64_t> dims, float scale = 1.0F,
              float mean = 0.0F) {
  Tensor t = Tensor::of(nullptr, dtype, dims);
  must(cudaMalloc(&t.data, static_cast<size_t>(t.bytes())));
  constexpr int64_t kPeriod = (1 << 22) + 7;  // values repeat after this many elements
  const std::vector<float> x = noise(std::min(t.elements(), kPeriod), next_seed++);
  std::vector<std::byte> bytes(static_cast<size_t>(t.bytes()));
  for (int64_t i = 0; i < t.elements(); ++i) {
    const float value = x[static_cast<size_t>(i) % x.size()] * scale + mean;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * 4, &bits, 4);
    } else {
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(bytes.data() + i * 2, &half, 2);
    }
  }
  must(cudaMemcpy(t.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  return t;
}

Tensor space(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = Tensor::of(nullptr, dtype, dims);
  must(cudaMalloc(&t.data, static_cast<size_t>(t.bytes())));
  must(cudaMemset(t.data, 0xff, static_cast<size_t>(t.bytes())));
  return t;
}

void release(std::initializer_list<Tensor> all) {
  for (const Tensor& t : all) must(cudaFree(t.data));
}

bool once = false;

double median_ms(int repeats, const std::function<void()>& enqueue) {
  cudaEvent_t begin = nullptr, end = nullptr;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  for (int i = 0; i < 2 && !once; ++i) enqueue();
  if (once) repeats = 1;
  std::vector<float> times;
  for (int i = 0; i < repeats; ++i) {
    must(cudaEventRecord(begin));
    enqueue();
    must(cudaEventRecord(end));
    must(cudaEventSynchronize(end));
    float ms = 0.0F;
    must(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  must(cudaEventDestroy(begin));
  must(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

void line(const char* what, const char* form, double forward_ms, double backward_ms,
          double forward_flop, double backward_flop) {
  std::printf("%-28s %-6s fwd %8.3f ms %6.0f TF/s   bwd %8.3f ms %6.0f TF/s   sum %8.3f ms\n", what,
              form, forward_ms, forward_flop / forward_ms * 1e-9, backward_ms,
              backward_flop / backward_ms * 1e-9, forward_ms + backward_ms);
  std::fflush(stdout);
}

void swa(int64_t heads, int64_t kv_heads, int64_t window, bool simple) {
  constexpr int64_t kSize = 128;
  SwaBackwardArgs b;
  b.q_THE = device(DType::kBF16, {kTokens, heads, kSize});
  b.k_TGE = device(DType::kBF16, {kTokens, kv_heads, kSize});
  b.v_TGE = device(DType::kBF16, {kTokens, kv_heads, kSize});
  b.do_THE = device(DType::kBF16, {kTokens, heads, kSize});
  b.o_THE = space(DType::kBF16, {kTokens, heads, kSize});
  b.lse_TH = space(DType::kF32, {kTokens, heads});
  b.dq_THE = space(DType::kBF16, {kTokens, heads, kSize});
  b.dk_TGE = space(DType::kBF16, {kTokens, kv_heads, kSize});
  b.dv_TGE = space(DType::kBF16, {kTokens, kv_heads, kSize});
  b.scratch = space(DType::kF32, {swa_backward_scratch(b.q_THE)});
  b.window = window;
  b.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kSize)));
  const SwaArgs a{b.q_THE, b.k_TGE, b.v_TGE, {}, b.o_THE, b.lse_TH, b.window, b.scale};
  char what[64];
  std::snprintf(what, sizeof(what), "swa %lld/%lld x 128, w %lld", static_cast<long long>(heads),
                static_cast<long long>(kv_heads), static_cast<long long>(window));
  for (const auto form : {cuda::SwaForm::kAuto, cuda::SwaForm::kSimple}) {
    const bool is_simple = form == cuda::SwaForm::kSimple;
    if (is_simple && !simple) continue;
    const int repeats = is_simple ? 3 : 30;
    const double forward = median_ms(repeats, [&] { must(cuda::launch_swa(nullptr, a, form)); });
    const double backward =
        median_ms(repeats, [&] { must(cuda::launch_swa_backward(nullptr, b, form)); });
    line(what, is_simple ? "simple" : "auto", forward, backward, cost(a), cost(b));
  }
  release({b.q_THE, b.k_TGE, b.v_TGE, b.do_THE, b.o_THE, b.lse_TH, b.dq_THE, b.dk_TGE, b.dv_TGE,
           b.scratch});
}

void mlstm(int64_t heads, bool simple) {
  constexpr int64_t kQk = 256, kV = 512, kChunk = 256;
  const int64_t chunks = mlstm_chunks(kTokens, kChunk);
  MlstmBackwardArgs b;
  b.q_TNK = device(DType::kBF16, {kTokens, heads, kQk});
  b.k_TNK = device(DType::kBF16, {kTokens, heads, kQk});
  b.v_TNU = device(DType::kBF16, {kTokens, heads, kV});
  b.dh_TNU = device(DType::kBF16, {kTokens, heads, kV});
  b.i_TN = device(DType::kF32, {kTokens, heads}, 1.0F, -3.0F);
  b.f_TN = device(DType::kF32, {kTokens, heads}, 1.0F, 4.5F);
  b.h_TNU = space(DType::kBF16, {kTokens, heads, kV});
  b.states_CNKU1 = space(DType::kBF16, {cuda::mlstm_bf16_states(chunks, heads, kQk, kV)});
  b.m_state_CN = space(DType::kF32, {chunks + 1, heads});
  b.m_TN = space(DType::kF32, {kTokens, heads});
  b.den_TN = space(DType::kF32, {kTokens, heads});
  b.dq_TNK = space(DType::kBF16, {kTokens, heads, kQk});
  b.dk_TNK = space(DType::kBF16, {kTokens, heads, kQk});
  b.dv_TNU = space(DType::kBF16, {kTokens, heads, kV});
  b.di_TN = space(DType::kF32, {kTokens, heads});
  b.df_TN = space(DType::kF32, {kTokens, heads});
  b.chunk = kChunk;
  const Tensor scratch = space(DType::kF32, {mlstm_scratch(kTokens, heads, kQk, kV, kChunk)});
  b.scratch = space(DType::kF32, {mlstm_backward_scratch(kTokens, heads, kQk, kV, kChunk)});
  const MlstmArgs a{b.q_TNK,        b.k_TNK,      b.v_TNU, b.i_TN,   b.f_TN,  {},     b.h_TNU,
                    b.states_CNKU1, b.m_state_CN, b.m_TN,  b.den_TN, scratch, kChunk, false};
  char what[64];
  std::snprintf(what, sizeof(what), "mlstm %lld x (256/512)", static_cast<long long>(heads));
  for (const auto form : {cuda::MlstmForm::kAuto, cuda::MlstmForm::kSimple}) {
    const bool is_simple = form == cuda::MlstmForm::kSimple;
    if (is_simple && !simple) continue;
    const int repeats = is_simple ? 3 : 30;
    const double forward = median_ms(repeats, [&] { must(cuda::launch_mlstm(nullptr, a, form)); });
    const double backward =
        median_ms(repeats, [&] { must(cuda::launch_mlstm_backward(nullptr, b, form)); });
    line(what, is_simple ? "simple" : "auto", forward, backward, cost(a), cost(b));
  }
  release({b.q_TNK, b.k_TNK, b.v_TNU, b.dh_TNU, b.i_TN, b.f_TN, b.h_TNU, b.states_CNKU1,
           b.m_state_CN, b.m_TN, b.den_TN, b.dq_TNK, b.dk_TNK, b.dv_TNU, b.di_TN, b.df_TN, scratch,
           b.scratch});
}

int main_with(bool simple) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("no CUDA device: nothing measured\n");
    return 0;
  }
  std::printf("S %lld, bf16, median of 30\n", static_cast<long long>(kTokens));
  swa(16, 16, 2048, simple);
  swa(16, 16, 128, simple);
  swa(32, 32, 2048, false);
  swa(16, 4, 2048, false);
  swa(16, 16, kTokens, false);
  mlstm(4, simple);
  mlstm(8, false);
  return 0;
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  swax::once = argc > 1 && std::strcmp(argv[1], "once") == 0;
  return swax::main_with(argc > 1 && std::strcmp(argv[1], "simple") == 0);
}
