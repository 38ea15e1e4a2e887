// Timing of ops of the CUDA backend at the shapes of the 1.4B model. One sample is several calls
// after each other in one graph, as a training step has them, over sets of buffers that rotate, so
// that a call does not find its own data in the cache; the figure is the median sample divided by
// its calls. Memory-bound ops print GB/s (each input read once, each output written once) and two
// shares, both measured in the same run: of the rate of a copy of 1 GiB, and of that of a copy of
// as many bytes as the op moves, which pays for launch and ramp as the op does. All buffers lie in
// one allocation, as a training step's do: in allocations of their own, ops and copies of 64 MiB
// take up to 12 % longer, by where each one comes to lie. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
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
constexpr int64_t kLossRows = kLossChunkCuda;
constexpr int kSets = 3;
constexpr DType kBf16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

// Ends the program with the message of an error.
void must(const Status& s);

using Run = std::function<Status(int)>;  // of one buffer set

struct Bench {
  std::unique_ptr<cuda::CudaBackend> backend;
  std::unique_ptr<Stream> stream;
  Buffer memory;                  // of all tensors, taken at the first one
  int64_t used = 0;               // bytes of it
  std::vector<std::string> only;  // words of names; none: all
  uint32_t seed = 1;

  Tensor make(DType dtype, std::initializer_list<int64_t> dims);  // random values in [-1, 1)
  Tensor raw(DType dtype, std::initializer_list<int64_t> dims);
  void clear();  // ends the life of all tensors, when what was enqueued has run
  // Median seconds of one run(set).
  double time(const Run& run);
  // The same of `count` sets, each of which before(set) prepares for its run, outside of the time.
  double time(const Run& run, int count, const Run& before);
  // Median seconds of a copy that moves (reads and writes together) so many bytes.
  double copy_seconds(int64_t moved);
  // Median seconds of one run(0) after 3 ms of rest each: the device's clock is not yet held down.
  double time_rested(const Run& run);
  bool wanted(const std::string& name) const;
  // prepare() makes the buffers and gives the op; they are freed afterwards.
  void bytes(const std::string& name, double moved, const std::function<Run()>& prepare);
  void flops(const std::string& name, double count, const std::function<Run()>& prepare);
  void print_bytes(const std::string& name, double moved, double seconds);
  void print_flops(const std::string& name, double count, double seconds) const;

 private:
  double time_plain(const Run& run);  // without a graph
  std::map<int64_t, double> copies_;  // seconds by the bytes they move
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
