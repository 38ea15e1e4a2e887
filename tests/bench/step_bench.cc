// Tokens per second of the CPU training step: one rank, one compute thread, the shape of a preset.
//   step_bench JOB.toml [STEPS]
// The whole step counts: data, forward, backward, sums, norm, AdamW, agreement. Always the long
// window, then always the short one. One JSON line; times are medians after three steps.
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "jobs/spec.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/rng.h"
#include "worker/comm/local_collectives.h"
#include "worker/data/build.h"
#include "worker/train/trainer.h"

namespace swax {
namespace {

constexpr size_t kWarmSteps = 3;

class TimeSink final : public ReportSink {
 public:
  void step(const StepReport& report) override {
    tokens = report.tokens;
    step_ns.push_back(report.step_ns);
  }
  void validation(const ValidationReport&) override {}
  void event(std::string_view, int64_t, std::string_view) override {}
  int64_t tokens = 0;
  std::vector<int64_t> step_ns;
};

// 1 MB of lines of letters; a line is a document.
std::string text() {
  std::string lines;
  for (uint64_t i = 0; lines.size() < 1'000'000; ++i) {
    for (const uint32_t word : random_block(3, Purpose::kTest, i))
      lines += static_cast<char>(word % 400 == 0 ? '\n' : 'a' + word % 26);
  }
  return lines;
}

Result<std::string> build_data(const std::string& folder) {
  const std::string path = join_path(folder, "text.txt");
  SWAX_TRY(write_atomic(path, text()));
  BuildOptions options;
  options.name = "bench";
  options.inputs = {path};
  options.documents = "line";
  options.validation_fraction = 0.0;
  SWAX_ASSIGN(const pb::DatasetManifest built, build_dataset(options, join_path(folder, "data")));
  return join_path(join_path(folder, "data"), built.digest());
}

// Median nanoseconds of a step, and its tokens.
Result<std::pair<int64_t, int64_t>> measure(const pb::JobSpec& spec, const std::string& data) {
  SWAX_ASSIGN(const auto backend, open_backend({}));
  const auto shard = make_local_collectives(1), replica = make_local_collectives(1);
  TimeSink sink;
  TrainerOptions options;
  options.spec = spec;
  options.data_folders = {data};
  options.sink = &sink;
  SWAX_ASSIGN(const auto trainer,
              Trainer::create(*backend, *shard[0], *replica[0], std::move(options)));
  SWAX_TRY(trainer->start());
  SWAX_TRY(trainer->run());
  std::vector<int64_t> times(sink.step_ns.begin() + kWarmSteps, sink.step_ns.end());
  std::sort(times.begin(), times.end());
  return std::pair(times[times.size() / 2], sink.tokens);
}

Result<pb::JobSpec> bench_spec(const std::string& path, const std::string& steps,
                               bool short_window) {
  SWAX_ASSIGN(const std::string toml, read_file(path, kSpecBytesMax));
  const SpecResult loaded = load_spec(toml, path,
                                      {{"training.steps", steps},
                                       {"window.p", short_window ? "1.0" : "0.0"},
                                       {"window.anneal_frac", "0.0"},
                                       {"validation.freq", "0"}});
  for (const SpecProblem& problem : loaded.problems)
    if (!problem.warning) return invalid_argument(problem.text());
  return loaded.spec;
}

Status run(const std::string& path, const std::string& steps, const std::string& folder) {
  SWAX_ASSIGN(const std::string data, build_data(folder));
  SWAX_ASSIGN(const pb::JobSpec long_spec, bench_spec(path, steps, false));
  SWAX_ASSIGN(const pb::JobSpec short_spec, bench_spec(path, steps, true));
  SWAX_ASSIGN(const auto long_step, measure(long_spec, data));
  SWAX_ASSIGN(const auto short_step, measure(short_spec, data));
  SWAX_ASSIGN(const ModelShape shape, model_shape(long_spec.model()));
  const auto rate = [](const std::pair<int64_t, int64_t>& step) {
    return static_cast<double>(step.second) * 1e9 / static_cast<double>(step.first);
  };
  std::printf("{\"parameters\":%lld,\"tokens_per_step\":%lld,\"long\":%.0f,\"short\":%.0f}\n",
              static_cast<long long>(shape.parameters()), static_cast<long long>(long_step.second),
              rate(long_step), rate(short_step));
  return ok();
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: step_bench JOB.toml [STEPS]\n");
    return 2;
  }
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  const std::string steps = argc == 3 ? argv[2] : "13";
  if (std::atoll(steps.c_str()) <= static_cast<long long>(swax::kWarmSteps)) {
    std::fprintf(stderr, "step_bench: STEPS must be above %zu\n", swax::kWarmSteps);
    return 2;
  }
  char folder[] = "/tmp/swax_step_bench_XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  const swax::Status status = swax::run(argv[1], steps, folder);
  if (!status.ok()) std::fprintf(stderr, "step_bench: %s\n", status.to_string().c_str());
  const swax::Status removed = swax::remove_tree(folder);
  return status.ok() && removed.ok() ? 0 : 1;
}
