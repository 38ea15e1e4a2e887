// The training step on a GPU: the whole Trainer (data, forward, backward, sums, norm, AdamW, one
// host wait), one rank, the shape of a preset, sequences of random tokens without borders.
//   cuda_step_bench JOB.toml [STEPS [PROFILED]] [--fit] [--set section.key=value]...
// One sequence a step unless --set says otherwise; short and long windows take turns by chance. A
// line per window: median time of a step after the first, tokens/s and its share of the device's
// dense bf16 rate. Then, over PROFILED further steps (8) with events around every call, the time of
// each kernel class (calls on one stream; gaps and overlap stay outside), and the planned device
// memory beside what the device reports. --fit: the least recompute that fits into the device.
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/open.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "tests/bench/cuda_profile.h"
#include "tests/bench/step_setup.h"
#include "worker/comm/local_collectives.h"
#include "worker/train/trainer.h"

namespace swax {
namespace {

constexpr double kDenseRate = 989.5e12;  // H200 SXM, bf16, by its data sheet
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

int64_t free_bytes() {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return static_cast<int64_t>(free);
}

// Times of the steps by window; profiles those after `timed`.
class BenchSink final : public ReportSink {
 public:
  BenchSink(test::CudaProfile& profile, int64_t timed) : profile_(profile), timed_(timed) {}
  void step(const StepReport& r) override {
    std::printf("step %lld window %lld loss %.6f norm %.4f %.1f ms\n",
                static_cast<long long>(r.step), static_cast<long long>(r.window), r.loss,
                r.grad_norm, static_cast<double>(r.step_ns) * 1e-6);
    std::fflush(stdout);
    if (r.step > timed_) profile_.collect(r.window);
    if (r.step > 1 && r.step <= timed_) {
      step_ns[r.window].push_back(r.step_ns);
      tokens = r.tokens;
    }
    free = free_bytes();
    profile_.enable(r.step >= timed_);
  }
  void validation(const ValidationReport&) override {}
  void event(std::string_view kind, int64_t, std::string_view text) override {
    std::printf("%.*s\n%.*s", static_cast<int>(kind.size()), kind.data(),
                static_cast<int>(text.size()), text.data());
  }
  std::map<int64_t, std::vector<int64_t>> step_ns;
  int64_t tokens = 0;
  int64_t free = 0;

 private:
  test::CudaProfile& profile_;
  int64_t timed_;
};

void print_windows(const BenchSink& sink, const pb::JobSpec& spec, const ModelShape& shape) {
  for (const auto& [window, all] : sink.step_ns) {
    std::vector<int64_t> times = all;
    std::sort(times.begin(), times.end());
    const double s = static_cast<double>(times[times.size() / 2]) * 1e-9;
    const double rate = static_cast<double>(sink.tokens) / s;
    const double flops = 3.0 * forward_flops_per_token(shape, window, spec.training().seq_len());
    std::printf(
        "window %lld: %.1f ms a step (median of %zu), %.0f tokens/s, %.1f %% of %.0f "
        "TFLOP/s\n",
        static_cast<long long>(window), s * 1e3, times.size(), rate,
        100.0 * rate * flops / kDenseRate, kDenseRate * 1e-12);
  }
}

Status run(const std::string& path, int64_t steps, int64_t profiled,
           const std::vector<SpecOverride>& more, bool fit, const std::string& folder) {
  SWAX_ASSIGN(pb::JobSpec spec, test::bench_spec(path, steps + profiled, 1, more));
  SWAX_ASSIGN(const ModelShape shape, model_shape(spec.model()));
  SWAX_ASSIGN(const std::string data,
              test::write_random_data(join_path(folder, "data"), shape.vocab,
                                      int64_t{spec.training().seq_len()} * 24 + 1));
  SWAX_ASSIGN(const auto backend, cuda::open_cuda_backend(0));
  if (fit) SWAX_TRY(test::fit_recompute(&spec, 1, free_bytes()));
  test::say_build();
  std::printf("%s\n%s: %lld parameters, recompute %s, %u sequences of %u a step\n",
              backend->fingerprint().c_str(), spec.job().name().c_str(),
              static_cast<long long>(shape.parameters()), recompute_text(spec).c_str(),
              spec.training().global_batch_size(), spec.training().seq_len());
  test::CudaProfile profile(*backend);
  BenchSink sink(profile, steps);
  const auto shard = make_local_collectives(1), replica = make_local_collectives(1);
  TrainerOptions options;
  options.spec = spec;
  options.data_folders = {data};
  options.sink = &sink;
  options.graphs = spec.training().graphs();
  const int64_t free_before = free_bytes();
  SWAX_ASSIGN(const auto trainer,
              Trainer::create(profile, *shard[0], *replica[0], std::move(options)));
  const MemoryPlan plan = trainer->memory_plan();
  std::printf("memory: planned %.3f GiB on the device (activations %.3f)\n",
              static_cast<double>(plan.device_bytes()) / kGiB,
              static_cast<double>(plan.arena_bytes) / kGiB);
  std::fflush(stdout);
  SWAX_TRY(trainer->start());
  SWAX_TRY(trainer->run());
  print_windows(sink, spec, shape);
  const GraphBackend::Counts graphs = trainer->graph_counts();
  std::printf("graphs: %lld made, %lld launches, %lld regions call by call\n",
              static_cast<long long>(graphs.captured), static_cast<long long>(graphs.launched),
              static_cast<long long>(graphs.direct));
  const int64_t taken = free_before - sink.free;
  std::printf("memory: planned %.3f GiB, the device reports %.3f GiB taken: %+.2f %%\n",
              static_cast<double>(plan.device_bytes()) / kGiB, static_cast<double>(taken) / kGiB,
              100.0 * (static_cast<double>(taken) / static_cast<double>(plan.device_bytes()) - 1));
  if (profiled > 0) profile.print();
  return ok();
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  int64_t steps = 24;
  int64_t profiled = 8;  // enough for both windows by chance
  std::string job;
  int numbers = 0;
  bool fit = false;
  std::vector<swax::SpecOverride> more;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = i + 1 < argc ? std::string(argv[i + 1]).find('=') : std::string::npos;
    if (word == "--set" && equals != std::string::npos) {
      const std::string pair = argv[++i];
      more.push_back({pair.substr(0, equals), pair.substr(equals + 1)});
    } else if (word == "--fit") {
      fit = true;
    } else if (job.empty()) {
      job = word;
    } else {
      (numbers++ == 0 ? steps : profiled) = std::atoll(word.c_str());
    }
  }
  if (job.empty() || steps < 3 || profiled < 0 || numbers > 2) {
    std::fprintf(stderr,
                 "usage: cuda_step_bench JOB.toml [STEPS >= 3 [PROFILED]] [--fit] "
                 "[--set KEY=VALUE]...\n");
    return 2;
  }
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  char folder[] = "/tmp/swax_cuda_step_XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  const swax::Status status = swax::run(job, steps, profiled, more, fit, folder);
  if (!status.ok()) std::fprintf(stderr, "cuda_step_bench: %s\n", status.to_string().c_str());
  const swax::Status removed = swax::remove_tree(folder);
  return status.ok() && removed.ok() ? 0 : 1;
}
