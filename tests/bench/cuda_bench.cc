#include "tests/bench/cuda_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "proto/base/ids.h"

namespace swax::bench {
namespace {

void must_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

class Events {
 public:
  Events() {
    must_cuda(cudaEventCreate(&begin_));
    must_cuda(cudaEventCreate(&end_));
  }
  ~Events() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  void begin(cudaStream_t stream) { must_cuda(cudaEventRecord(begin_, stream)); }
  double end_ms(cudaStream_t stream) {
    must_cuda(cudaEventRecord(end_, stream));
    must_cuda(cudaEventSynchronize(end_));
    float all = 0.0F;
    must_cuda(cudaEventElapsedTime(&all, begin_, end_));
    return static_cast<double>(all);
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Calls 0, 1, ... of a run as one graph.
class Sample {
 public:
  Sample(cudaStream_t stream, int calls, const Run& run) : stream_(stream) {
    must(run(0));  // the first call of a shape prepares
    cudaGraph_t graph = nullptr;
    must_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int k = 0; k < calls; ++k) must(run(k));
    must_cuda(cudaStreamEndCapture(stream_, &graph));
    must_cuda(cudaGraphInstantiate(&graph_, graph, 0));
    must_cuda(cudaGraphDestroy(graph));
  }
  ~Sample() { cudaGraphExecDestroy(graph_); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  double ms() {
    events_.begin(stream_);
    must_cuda(cudaGraphLaunch(graph_, stream_));
    return events_.end_ms(stream_);
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
  Events events_;
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

constexpr int kWarm = 2;
constexpr int kSamples = 11;

}  // namespace

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
  constexpr int64_t kMemory = int64_t{32} << 30;
  constexpr int64_t kAlign = 256;
  if (memory.data() == nullptr) {
    Result<Buffer> b = backend->allocate(kMemory, MemoryKind::kDevice);
    must(b.status());
    memory = std::move(b).value();
  }
  Tensor t = Tensor::of(nullptr, dtype, dims);
  if (t.bytes() > kMemory - used) must(resource_exhausted("the buffers of an op pass 32 GiB"));
  t.data = static_cast<char*>(memory.data()) + used;
  used += round_up(t.bytes(), kAlign);
  return t;
}

void Bench::clear() {
  must(backend->sync(*stream));
  used = 0;
}

bool Bench::wanted(const std::string& name) const {
  const auto in_name = [&](const std::string& word) { return name.find(word) != name.npos; };
  return only.empty() || std::any_of(only.begin(), only.end(), in_name);
}

double Bench::time(const Run& run) {
  return time([&](int k) { return run(k % kSets); }, 2 * kSets, [](int) { return ok(); });
}

double Bench::time(const Run& run, int count, const Run& before) {
  const auto prepare = [&] {
    for (int k = 0; k < count; ++k) must(before(k));
  };
  prepare();
  Sample sample(cuda::raw(*stream), count, run);
  std::vector<double> ms;
  for (int i = 0; i < kWarm + kSamples; ++i) {
    prepare();
    const double all = sample.ms();
    if (i >= kWarm) ms.push_back(all / count);
  }
  must(backend->sync(*stream));
  return median(ms) * 1e-3;
}

double Bench::time_rested(const Run& run) {
  Sample sample(cuda::raw(*stream), 1, run);
  std::vector<double> ms;
  for (int i = 0; i < kWarm + kSamples; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const double one = sample.ms();
    if (i >= kWarm) ms.push_back(one);
  }
  return median(ms) * 1e-3;
}

double Bench::copy_seconds(int64_t moved) {
  constexpr int64_t kMovedMax = int64_t{2} << 30;  // larger ones have the rate of this one
  if (moved > kMovedMax) {
    return static_cast<double>(moved) / static_cast<double>(kMovedMax) * copy_seconds(kMovedMax);
  }
  const auto at = copies_.find(moved);
  if (at != copies_.end()) return at->second;
  const int64_t n = moved / 8;
  const auto buffers =
      sets([&] { return std::pair<Tensor, Tensor>(make(kF32, {n}), make(kF32, {n})); });
  const Run copy = [&](int i) {
    const auto& [from, to] = buffers[static_cast<size_t>(i)];
    return backend->copy(*stream, to, from);
  };
  // A long copy of a graph goes by way of the copy engine, which is slower: the better one counts.
  const double s = std::min(time(copy), time_plain(copy));
  clear();
  return copies_[moved] = s;
}

double Bench::time_plain(const Run& run) {
  Events events;
  std::vector<double> ms;
  constexpr int kCalls = 2 * kSets;
  for (int i = 0; i < kWarm + kSamples; ++i) {
    events.begin(cuda::raw(*stream));
    for (int k = 0; k < kCalls; ++k) must(run(k % kSets));
    const double all = events.end_ms(cuda::raw(*stream));
    if (i >= kWarm) ms.push_back(all / kCalls);
  }
  return median(ms) * 1e-3;
}

void Bench::print_bytes(const std::string& name, double moved, double seconds) {
  const double rate = 1.0 / copy_seconds(int64_t{2} << 30) * static_cast<double>(int64_t{2} << 30);
  const double same = copy_seconds(static_cast<int64_t>(moved));
  std::printf("%-34s %9.1f us %6.0f GB/s %6.1f %% of copy %6.1f %% of a copy of its bytes\n",
              name.c_str(), seconds * 1e6, moved / seconds * 1e-9, moved / seconds / rate * 100.0,
              same / seconds * 100.0);
  std::fflush(stdout);
}

void Bench::print_flops(const std::string& name, double count, double seconds) const {
  std::printf("%-34s %9.1f us %6.1f TFLOP/s\n", name.c_str(), seconds * 1e6,
              count / seconds * 1e-12);
  std::fflush(stdout);
}

void Bench::bytes(const std::string& name, double moved, const std::function<Run()>& prepare) {
  if (!wanted(name)) return;
  const double s = time(prepare());
  clear();
  print_bytes(name, moved, s);
  clear();
}

void Bench::flops(const std::string& name, double count, const std::function<Run()>& prepare) {
  if (!wanted(name)) return;
  print_flops(name, count, time(prepare()));
  clear();
}

}  // namespace swax::bench
