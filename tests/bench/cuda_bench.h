// Timing of ops of the CUDA backend at the shapes of the 1.4B model. One sample is several calls
// after each other on the stream, as a training step makes them, over sets of buffers that rotate,
// so that a call does not find its own data in the cache; the figure is the median sample divided
// by its calls. Memory-bound ops print GB/s (each input read once, each output written once) and
// the share of the copy rate measured in the same run. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"

namespace swax::bench {

constexpr int64_t kTokens = 16384;
constexpr int64_t kDim = 2048;
constexpr int64_t kInner = 5632;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadSize = 512;
constexpr int64_t kVocab = 50304;
constexpr int64_t kLossRows = 2048;
constexpr int kSets = 3;
constexpr DType kBf16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

// Ends the program with the message of an error.
void must(const Status& s);

using Run = std::function<Status(int)>;  // of one buffer set

struct Bench {
  std::unique_ptr<cuda::CudaBackend> backend;
  std::unique_ptr<Stream> stream;
  std::vector<Buffer> memory;
  std::string only;
  double copy_rate = 0.0;  // bytes/s
  uint32_t seed = 1;

  Tensor make(DType dtype, std::initializer_list<int64_t> dims);  // random values in [-1, 1)
  Tensor raw(DType dtype, std::initializer_list<int64_t> dims);
  // Median seconds of one run(set). `before(set)` comes before each run, outside of the time.
  double time(const Run& run, const Run& before = nullptr);
  bool wanted(const std::string& name) const {
    return only.empty() || name.find(only) != std::string::npos;
  }
  // prepare() makes the buffers and gives the op; they are freed afterwards.
  void bytes(const std::string& name, double moved, const std::function<Run()>& prepare);
  void flops(const std::string& name, double count, const std::function<Run()>& prepare);
  void print_bytes(const std::string& name, double moved, double seconds) const;
};

// One value of a buffer set.
template <typename Make>
std::vector<decltype(std::declval<Make>()())> sets(Make make) {
  std::vector<decltype(make())> out;
  for (int i = 0; i < kSets; ++i) out.push_back(make());
  return out;
}

void bench_ends(Bench& b);      // embedding, loss, gates
void bench_products(Bench& b);  // products, head and loss

}  // namespace swax::bench
