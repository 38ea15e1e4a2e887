#include "tests/bench/cuda_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace swax::bench {

void must(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.to_string().c_str());
  std::exit(1);
}

Tensor Bench::make(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = raw(dtype, dims);
  if (dtype == kBf16 || dtype == kF32) {
    must(cuda::fill_probe(cuda::raw(*stream), dtype, t.data, t.elements(), seed++));
  } else {
    cudaMemsetAsync(t.data, 0, static_cast<size_t>(t.bytes()), cuda::raw(*stream));
  }
  return t;
}

Tensor Bench::raw(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = Tensor::of(nullptr, dtype, dims);
  Result<Buffer> b = backend->allocate(t.bytes(), MemoryKind::kDevice);
  must(b.status());
  t.data = b->data();
  memory.push_back(std::move(b).value());
  return t;
}

double Bench::time(const Run& run, const Run& before) {
  constexpr int kWarm = 2;
  constexpr int kSamples = 11;
  const int calls = before ? kSets : 2 * kSets;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> ms;
  for (int i = 0; i < kWarm + kSamples; ++i) {
    for (int k = 0; before && k < kSets; ++k) must(before(k));
    cudaEventRecord(begin, cuda::raw(*stream));
    for (int k = 0; k < calls; ++k) must(run(k % kSets));
    cudaEventRecord(end, cuda::raw(*stream));
    cudaEventSynchronize(end);
    float all = 0.0F;
    cudaEventElapsedTime(&all, begin, end);
    if (i >= kWarm) ms.push_back(all / static_cast<float>(calls));
  }
  must(backend->sync(*stream));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(ms.begin(), ms.end());
  return static_cast<double>(ms[ms.size() / 2]) * 1e-3;
}

void Bench::print_bytes(const std::string& name, double moved, double seconds) const {
  std::printf("%-34s %9.1f us %8.0f GB/s %6.1f %% of copy\n", name.c_str(), seconds * 1e6,
              moved / seconds * 1e-9, moved / seconds / copy_rate * 100.0);
  std::fflush(stdout);
}

void Bench::bytes(const std::string& name, double moved, const std::function<Run()>& prepare) {
  if (!wanted(name)) return;
  print_bytes(name, moved, time(prepare()));
  memory.clear();
}

void Bench::flops(const std::string& name, double count, const std::function<Run()>& prepare) {
  if (!wanted(name)) return;
  const double s = time(prepare());
  std::printf("%-34s %9.1f us %8.1f TFLOP/s\n", name.c_str(), s * 1e6, count / s * 1e-12);
  std::fflush(stdout);
  memory.clear();
}

}  // namespace swax::bench
