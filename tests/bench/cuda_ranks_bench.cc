// The training step on several GPUs of one host, as the trainer runs it: one process a rank over
// MPI and NCCL, sequences of random tokens without borders, one a rank and step unless --set says
// otherwise. Start it by mpirun, or alone for one rank:
//   cuda_ranks_bench JOB.toml [STEPS] [--set section.key=value]... [--ways] [--settle N]
//                    [--first N] [--fit] [--checkpoints FOLDER]
// Times are those between two reports of rank 0: data, step, agreement of the ranks. Steps up to
// --settle (3) are not counted, the next --first (0) take no turns. Printed per window: the median,
// tokens/s of all and of each GPU.
//   --ways  steps take turns: the exchange as it is ("slots"), ncclReduceScatter instead of
//           all-to-all and slot sum, and nothing at all (then ranks compute with what lies there:
//           products take the same time, results mean nothing). Exposed communication is the time
//           that the step has more than with nothing: waiting for the link, and what the
//           collectives cost the kernels beside them. The additions of the slot sum stay in all
//           three.
//   --fit   takes the least recompute (none, light and block in 1, 2, ... layers), with weights
//   kept
//           or else given back, whose plan leaves 2 GiB of the device free, for probes of products
//           and code
//   --checkpoints  saves there by checkpoint.interval; per save: the longest step more than the
//           median, tokens/s until it was committed
// Memory: planned, and what the device has less than when the ranks were connected; NCCL's own
// beside.
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/open.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "tests/bench/cuda_nccl_reduce.h"
#include "tests/bench/step_setup.h"
#include "tests/bench/step_times.h"
#include "tests/bench/step_ways.h"
#include "worker/comm/device_collectives.h"
#include "worker/comm/local_collectives.h"
#include "worker/comm/mpi_collectives.h"
#include "worker/train/launcher.h"
#include "worker/train/trainer.h"

namespace swax {
namespace {

using test::Way;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Arguments {
  std::string job;
  int64_t steps = 24;
  int64_t settle = 3;
  int64_t first = 0;
  std::vector<SpecOverride> more;
  bool ways = false;
  bool fit = false;
  std::string checkpoints;
};

int64_t free_bytes() {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return static_cast<int64_t>(free);
}

double gib(int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

// Switches the way of the next step on every rank; rank 0 keeps the times.
class RanksSink final : public ReportSink {
 public:
  RanksSink(test::WaySwitch& ways, std::vector<Way> turns, int64_t turns_from, bool keeps)
      : ways_(ways), turns_(std::move(turns)), turns_from_(turns_from), keeps_(keeps) {}
  void step(const StepReport& r) override {
    if (keeps_) times.step(r.step, r.window, static_cast<int>(ways_.now), r.loss);
    free = free_bytes();
    const int64_t turn = r.step - turns_from_;
    ways_.now = turn < 0 ? Way::kSlots : turns_[static_cast<size_t>(turn) % turns_.size()];
  }
  void validation(const ValidationReport&) override {}
  void event(std::string_view kind, int64_t at, std::string_view text) override {
    if (!keeps_) return;
    if (kind == "checkpoint_committed") return times.committed(at);
    if (kind == "kernel_choices") return;
    std::printf("%.*s: step %lld %.*s\n", static_cast<int>(kind.size()), kind.data(),
                static_cast<long long>(at), static_cast<int>(text.size()), text.data());
  }
  test::StepTimes times;
  int64_t free = 0;

 private:
  test::WaySwitch& ways_;
  std::vector<Way> turns_;
  int64_t turns_from_;  // steps before take none
  bool keeps_;
};

Status fit(pb::JobSpec* spec, Collectives& group) {
  int64_t least = -free_bytes();
  SWAX_TRY(group.max_host(std::span(&least, 1)));
  return test::fit_recompute(spec, group.size(), -least);
}

// Everything that NCCL takes on its first calls is taken here.
Status connect(Backend& backend, Collectives& group, test::NcclReduce* reduce) {
  if (group.size() == 1) return ok();
  constexpr int64_t kElements = 1 << 20;
  SWAX_ASSIGN(const auto stream, backend.make_stream());
  const int64_t count = kElements * group.size();
  SWAX_ASSIGN(const Buffer a, backend.allocate(4 * count, MemoryKind::kDevice));
  SWAX_ASSIGN(const Buffer b, backend.allocate(4 * count, MemoryKind::kDevice));
  const Tensor send = Tensor::of(a.data(), DType::kF32, {count});
  const Tensor recv = Tensor::of(b.data(), DType::kF32, {count});
  SWAX_TRY(backend.fill(*stream, {.x = send, .value = 1.0F}));
  SWAX_TRY(group.all_to_all(*stream, send, recv));
  const Tensor own = Tensor::of(recv.f32() + group.rank() * kElements, DType::kF32, {kElements});
  SWAX_TRY(group.all_gather(*stream, own, recv));
  if (reduce != nullptr) SWAX_TRY(reduce->reduce_scatter(*stream, send, own));
  return backend.sync(*stream);
}

// A folder that rank 0 makes and all know.
Result<std::string> shared_folder(Collectives& group) {
  struct Name {
    char text[64];
  };
  Name mine{};
  std::strncpy(mine.text, "/tmp/swax_ranks_bench_XXXXXX", sizeof mine.text - 1);
  if (group.rank() == 0 && ::mkdtemp(mine.text) == nullptr) mine.text[0] = '\0';
  std::vector<Name> all(static_cast<size_t>(group.size()));
  SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  if (all[0].text[0] == '\0') return internal_error("no folder could be made below /tmp");
  return std::string(all[0].text);
}

void print_memory(const Collectives& group, const MemoryPlan& plan, int64_t taken, int64_t nccl) {
  if (group.rank() != 0) return;
  std::printf("memory: planned %.3f GiB, the device reports %.3f GiB taken: %+.2f %%; NCCL %.3f\n",
              gib(plan.device_bytes()), gib(taken),
              100.0 * (static_cast<double>(taken) / static_cast<double>(plan.device_bytes()) - 1),
              gib(nccl));
}

void print_head(const pb::JobSpec& spec, const Backend& backend, const MemoryPlan& plan,
                int ranks) {
  test::say_build();
  std::printf("%s %s\n%s: %d ranks, %u sequences of %u a step, recompute %s, weights %s\n",
              backend.fingerprint().c_str(), device_collectives_text().c_str(),
              spec.job().name().c_str(), ranks, spec.training().global_batch_size(),
              spec.training().seq_len(), recompute_text(spec).c_str(),
              spec.parallelism().fsdp_reshard_after_forward() == "always" ? "given back" : "kept");
  std::printf("memory: planned %.3f GiB on the device (activations %.3f)\n",
              gib(plan.device_bytes()), gib(plan.arena_bytes));
  std::fflush(stdout);
}

Status bench(const Arguments& args, Collectives& host) {
  const int ranks = host.size();
  SWAX_ASSIGN(pb::JobSpec spec, test::bench_spec(args.job, args.steps, ranks, args.more));
  SWAX_ASSIGN(const ModelShape shape, model_shape(spec.model()));
  SWAX_ASSIGN(const auto gpu, cuda::open_cuda_backend(static_cast<int>(local_rank().rank)));
  const int64_t free_alone = free_bytes();
  SWAX_ASSIGN(const auto group, make_device_collectives(*gpu, host));
  std::unique_ptr<test::NcclReduce> reduce;
  test::WaySwitch ways;
  std::vector<Way> turns = {Way::kSlots};
  if (args.ways && ranks > 1) {
    SWAX_ASSIGN(reduce, test::make_nccl_reduce(*gpu, host));
    ways.reduce_scatter = [&](Stream& s, Tensor send, Tensor recv) {
      return reduce->reduce_scatter(s, send, recv);
    };
    turns = {Way::kSlots, Way::kReduceScatter, Way::kNothing};
  }
  SWAX_TRY(connect(*gpu, *group, reduce.get()));
  const int64_t free_connected = free_bytes();
  if (args.fit) SWAX_TRY(fit(&spec, *group));

  SWAX_ASSIGN(const std::string folder, shared_folder(host));
  const std::string data = join_path(folder, "data");
  if (host.rank() == 0) {
    if (!args.checkpoints.empty()) SWAX_TRY(make_dirs(args.checkpoints));
    SWAX_TRY(
        test::write_random_data(data, shape.vocab, int64_t{spec.training().seq_len()} * 48 + 1));
  }
  SWAX_TRY(host.barrier());
  test::WayCollectives shard(*group, *gpu, ways);
  test::WayBackend backend(*gpu, ways);
  const auto replica = make_local_collectives(1);
  RanksSink sink(ways, turns, args.settle + args.first, host.rank() == 0);
  TrainerOptions options;
  options.spec = spec;
  options.data_folders = {data};
  options.sink = &sink;
  options.graphs = spec.training().graphs();
  options.ckpt_root = args.checkpoints;
  SWAX_ASSIGN(const auto trainer, Trainer::create(backend, shard, *replica[0], std::move(options)));
  const MemoryPlan plan = trainer->memory_plan();
  if (host.rank() == 0) print_head(spec, *gpu, plan, ranks);
  SWAX_TRY(trainer->start());
  SWAX_TRY(trainer->run());
  if (host.rank() == 0) {
    const int64_t tokens = int64_t{spec.training().global_batch_size()} * spec.training().seq_len();
    sink.times.print(args.settle, ranks, tokens);
    if (!args.checkpoints.empty()) sink.times.print_saves(args.settle, tokens);
    SWAX_TRY(remove_tree(folder));
  }
  print_memory(*group, plan, free_connected - sink.free, free_alone - free_connected);
  return host.barrier();
}

bool parse(int argc, char** argv, Arguments* args) {
  int numbers = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string next = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--ways" || word == "--fit") {
      (word == "--ways" ? args->ways : args->fit) = true;
    } else if (word == "--set" && next.find('=') != std::string::npos) {
      args->more.push_back({next.substr(0, next.find('=')), next.substr(next.find('=') + 1)});
      ++i;
    } else if ((word == "--settle" || word == "--first") && !next.empty()) {
      (word == "--settle" ? args->settle : args->first) = std::atoll(next.c_str());
      ++i;
    } else if (word == "--checkpoints" && !next.empty()) {
      args->checkpoints = next;
      ++i;
    } else if (word.substr(0, 1) == "-") {
      return false;
    } else if (args->job.empty()) {
      args->job = word;
    } else {
      args->steps = std::atoll(word.c_str());
      ++numbers;
    }
  }
  return !args->job.empty() && numbers <= 1 && args->settle >= 1 && args->first >= 0 &&
         args->steps > args->settle;
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  swax::Arguments args;
  if (!swax::parse(argc, argv, &args)) {
    std::fprintf(stderr,
                 "usage: [mpirun ...] cuda_ranks_bench JOB.toml [STEPS] [--set KEY=VALUE]...\n"
                 "       [--ways] [--settle N >= 1] [--first N] [--fit] [--checkpoints FOLDER]\n");
    return 2;
  }
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  const int ranks = size != nullptr ? std::atoi(size) : 1;
  auto alone = swax::make_local_collectives(1);
  std::unique_ptr<swax::Collectives> host = std::move(alone[0]);
  if (size != nullptr) {
    auto made = swax::init_mpi_collectives(ranks);
    if (!made.ok()) {
      std::fprintf(stderr, "cuda_ranks_bench: %s\n", made.status().to_string().c_str());
      return 1;
    }
    host = std::move(made).value();
  }
  const swax::Status status = swax::bench(args, *host);
  if (!status.ok()) {
    std::fprintf(stderr, "cuda_ranks_bench: rank %d: %s\n", host->rank(),
                 status.to_string().c_str());
    std::fflush(stderr);
    ::_exit(1);  // the others may wait in a call: the launcher ends them
  }
  swax::finalize_mpi();
  return 0;
}
