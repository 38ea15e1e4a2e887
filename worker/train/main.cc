// swax-train: one rank. `train` is started by mpirun or srun under `swax run` or a node agent;
// `generate` is run by `swax generate`. Exit codes: 0 done, 99 checkpointed and left on request, 93
// non-finite loss, 78 config or data error, 75 storage or peers (retry), 1 internal.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "jobs/spec.h"
#include "kernels/self_test.h"
#include "proto/base/build_info.h"
#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "storage/rocks_kv.h"
#include "worker/comm/device_collectives.h"
#include "worker/comm/local_collectives.h"
#include "worker/comm/mpi_collectives.h"
#include "worker/train/agent_link.h"
#include "worker/train/arguments.h"
#include "worker/train/doctor.h"
#include "worker/train/exit_codes.h"
#include "worker/train/generate.h"
#include "worker/train/launcher.h"
#include "worker/train/reporter.h"
#include "worker/train/trainer.h"

namespace swax {
namespace {

// Asked for before or while a trainer exists; signal handlers and the agent's line set it.
std::atomic<bool> stop_asked{false};
std::atomic<Trainer*> running{nullptr};

void ask_stop() {
  stop_asked.store(true);
  if (Trainer* trainer = running.load()) trainer->request_stop();
}

void on_signal(int) { ask_stop(); }

// The line to the node agent, when there is one: SWAX_AGENT_DIR/SWAX_WORKER.sock. Both come from
// this node's own launcher.
Result<std::unique_ptr<AgentLink>> connect_agent(const TrainArguments& args, int rank) {
  const char* folder = std::getenv("SWAX_AGENT_DIR");
  if (folder == nullptr) return std::unique_ptr<AgentLink>();
  const char* node = std::getenv("SWAX_WORKER");
  const char* job = std::getenv("SWAX_JOB");
  if (node == nullptr || job == nullptr)
    return invalid_argument("SWAX_AGENT_DIR is set, SWAX_WORKER or SWAX_JOB is not");
  AgentLinkOptions options;
  options.socket_path = join_path(folder, std::string(node) + ".sock");
  options.hello.set_rank(static_cast<uint32_t>(rank));
  options.hello.set_world_size(static_cast<uint32_t>(args.ranks));
  options.hello.set_job(job);
  options.hello.set_epoch(static_cast<uint64_t>(args.epoch));
  options.hello.set_pid(static_cast<uint32_t>(::getpid()));
  options.hello.set_build_id(build_id());
  options.on_stop = ask_stop;
  options.on_save = [] {
    if (Trainer* trainer = running.load()) trainer->request_checkpoint();
  };
  return AgentLink::connect(std::move(options));
}

int exit_code(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return 0;
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kDataLoss:
    case Code::kNotFound:
      return kExitConfig;
    case Code::kUnavailable:
    case Code::kResourceExhausted:
    case Code::kDeadlineExceeded:
      return kExitRetry;
    default:
      return kExitInternal;
  }
}

// The reason in a file of its own, so that whoever started the ranks can name it whatever happens
// to pipes.
void leave_reason(const TrainArguments& args, int rank, const std::string& reason) {
  const std::string folder = join_path(args.state, "attempts/a" + to_text(args.epoch));
  if (!make_dirs(folder).ok()) return;
  if (const Status s =
          write_atomic(join_path(folder, "failure-rank-" + to_text(rank)), reason + "\n");
      !s.ok())
    log_error("train", "reason not written", {{"reason", s.message()}});
}

Result<pb::JobSpec> read_spec(const std::string& path) {
  SWAX_ASSIGN(const std::string bytes, read_file(path, 16 * kMiB));
  pb::JobSpec spec;
  if (!spec.ParseFromString(bytes)) return invalid_argument(path + ": not a job spec");
  fill_absent(&spec);
  const std::vector<SpecProblem> problems = check_spec(spec);
  for (const SpecProblem& problem : problems)
    if (!problem.warning) return invalid_argument(path + ": " + problem.text());
  return spec;
}

pb::DoneReport done_report(const RunOutcome& outcome) {
  pb::DoneReport done;
  const bool finite = outcome.kind != RunOutcome::Kind::kNonFinite;
  done.set_outcome(outcome.kind == RunOutcome::Kind::kDone ? "done"
                   : finite                                ? "stopped"
                                                           : "failed");
  done.set_step(static_cast<uint64_t>(outcome.step));
  done.set_digest(outcome.digest);
  done.set_loss_bits(std::bit_cast<uint64_t>(outcome.loss));
  done.set_validation_bpb_bits(std::bit_cast<uint64_t>(outcome.validation_bpb));
  done.set_tokens_per_s(outcome.tokens_per_s);
  done.set_reason(outcome.reason);
  return done;
}

std::vector<std::string> state_names(const ModelShape& shape) {
  std::vector<std::string> names;
  for (int kind = 0; kind < kStateKinds; ++kind)
    for (size_t t = 0; t < shape.tensors.size(); ++t)
      names.push_back(state_tensor_name(shape, kind, static_cast<int>(t)));
  return names;
}

// Rank 0's record log. The sweep comes first: nobody may read checkpoints before it is done.
Result<std::unique_ptr<RecordReporter>> open_records(const TrainArguments& args,
                                                     const pb::JobSpec& spec,
                                                     const std::string& ckpt_root, int ranks) {
  SWAX_TRY(sweep_checkpoints(ckpt_root, static_cast<uint64_t>(args.epoch)));
  const std::string folder = args.records.empty() ? join_path(args.state, "records") : args.records;
  SWAX_TRY(make_dirs(folder));
  SWAX_ASSIGN(const ModelShape shape, model_shape(spec.model()));
  return RecordReporter::create(join_path(folder, "a" + to_text(args.epoch) + ".log"),
                                static_cast<uint64_t>(args.epoch), ranks, state_names(shape));
}

// The backend that the spec names. A rank's device is its number among the ranks of its node.
Result<std::unique_ptr<Backend>> open_rank_backend(const pb::JobSpec& spec) {
  BackendOptions options;
  options.kind = backend_kind(spec);
  options.compute_threads = static_cast<int>(spec.parallelism().compute_threads());
  options.plain_gemm = std::getenv("SWAX_PLAIN_GEMM") != nullptr;
  if (options.kind == BackendKind::kCpu) return open_backend(options);
  const LocalRank here = local_rank();
  options.ordinal = static_cast<int>(here.rank);
  auto backend = open_backend(options);
  if (!backend.ok())
    return backend.status().with_context("training.backend=cuda, rank " +
                                         to_text(int64_t{options.ordinal} + 1) + " of " +
                                         to_text(here.size) + " on this node");
  return backend;
}

Result<RunOutcome> train_rank(const TrainArguments& args, Collectives& host, Collectives& replica,
                              AgentLink* link) {
  SWAX_ASSIGN(const pb::JobSpec spec, read_spec(args.spec));
  SWAX_ASSIGN(const auto backend, open_rank_backend(spec));
  SWAX_TRY(self_test(*backend));
  SWAX_ASSIGN(const auto on_device, make_device_collectives(*backend, host));
  Collectives& shard = on_device ? *on_device : host;
  TrainerOptions options;
  options.spec = spec;
  options.data_folders = args.data;
  options.ckpt_root = args.checkpoints.empty()
                          ? join_path(args.state, "store/jobs/" + spec.job().name() + "/ckpt")
                          : args.checkpoints;
  options.choices_file = join_path(parent_path(options.ckpt_root), "kernel-choices");
  options.graphs = spec.training().graphs();
  options.epoch = static_cast<uint64_t>(args.epoch);
  options.build_id = build_id();
  options.fingerprint = backend->fingerprint();
  if (const char* flip = std::getenv("SWAX_TEST_FLIP_GRADIENT")) {
    SWAX_ASSIGN(options.flip, parse_gradient_flip(flip));
  }
  SWAX_TRY(agree_fingerprint(shard, options.fingerprint + " build=" + options.build_id));
  SWAX_TRY(make_dirs(options.ckpt_root));

  std::unique_ptr<RecordReporter> reporter;
  if (shard.rank() == 0) {
    SWAX_ASSIGN(reporter, open_records(args, spec, options.ckpt_root, shard.size()));
  }
  SWAX_TRY(shard.barrier());
  std::unique_ptr<TeeSink> both;
  options.sink = reporter.get();
  if (link != nullptr) {
    SWAX_ASSIGN(const ModelShape shape, model_shape(spec.model()));
    link->set_state_names(state_names(shape));
    options.report_durable = [link](const pb::RankDurable& report) { link->durable(report); };
    options.sink = link;
    if (reporter) {
      both = std::make_unique<TeeSink>(*reporter, *link);
      options.sink = both.get();
    }
  }
  SWAX_ASSIGN(const auto trainer, Trainer::create(*backend, shard, replica, std::move(options)));
  running.store(trainer.get());
  if (stop_asked.load()) trainer->request_stop();
  SWAX_ASSIGN(const int64_t start, trainer->start());
  pb::RankReport report;
  pb::HelloReport& hello = *report.mutable_hello();
  hello.set_rank(static_cast<uint32_t>(shard.rank()));
  hello.set_world_size(static_cast<uint32_t>(shard.size()));
  hello.set_epoch(static_cast<uint64_t>(args.epoch));
  hello.set_build_id(build_id());
  hello.set_fingerprint(trainer->fingerprint());
  hello.set_start_step(static_cast<uint64_t>(start));
  hello.set_arena_bytes(static_cast<uint64_t>(trainer->memory_plan().arena_bytes));
  if (reporter) reporter->write(report);
  if (link != nullptr) link->report(hello);
  log_info("train", "training begins",
           {{"step", start}, {"ranks", shard.size()}, {"epoch", args.epoch}});
  auto outcome = trainer->run();
  running.store(nullptr);
  if (outcome.ok() && shard.rank() == 0) {
    pb::RankReport done;
    *done.mutable_done() = done_report(*outcome);
    reporter->write(done);
    if (link != nullptr) link->done(done.done());
  }
  return outcome;
}

// What is printed here, by us or by a library, goes where the log goes: nobody would look for it
// behind mpirun, whose pipe could hold training up.
void print_into(const std::string& log) {
  const Fd fd(::open(log.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd.valid()) return;
  std::fflush(stdout);
  ::dup2(fd.get(), STDOUT_FILENO);
  ::dup2(fd.get(), STDERR_FILENO);
}

int train(const TrainArguments& args) {
  int rank = 0;
  // Copy engines leave the reason of a group's end to no thread but the one that ends the process.
  auto shard = init_mpi_collectives(args.ranks, INT32_MAX, [&args, &rank](std::string_view reason) {
    leave_reason(args, rank, std::string(reason));
  });
  if (!shard.ok()) {
    std::fprintf(stderr, "swax-train: %s\n", shard.status().message().c_str());
    return kExitConfig;
  }
  rank = (*shard)->rank();
  if (const Status s = check_rank_number(rank); !s.ok()) {
    std::fprintf(stderr, "swax-train: %s\n", s.message().c_str());
    return kExitConfig;
  }
  failpoints_init(rank);
  LogOptions log;
  log.process = "rank=" + to_text(rank);
  const std::string log_folder = join_path(
      args.logs.empty() ? join_path(args.state, "logs") : args.logs, "a" + to_text(args.epoch));
  if (make_dirs(log_folder).ok()) {
    log.file = join_path(log_folder, "rank-" + to_text(rank) + ".log");
    log.to_stderr = false;
  }
  if (const Status s = log_init(log); !s.ok()) {
    std::fprintf(stderr, "swax-train: %s\n", s.message().c_str());
  } else if (!log.file.empty()) {
    print_into(log.file);
  }
  auto replica = make_local_collectives(1);
  auto link = connect_agent(args, rank);
  auto outcome = link.ok() ? train_rank(args, **shard, *replica[0], link->get())
                           : Result<RunOutcome>(link.status());
  if (!outcome.ok()) {
    log_error("train", "rank failed", {{"reason", outcome.status().to_string()}});
    leave_reason(args, rank, outcome.status().message());
    if (link.ok() && *link) {
      (*link)->failure(outcome.status().message());
      (*link)->flush(500);
    }
    log_flush();
    const int code = exit_code(outcome.status());
    // The others may wait in a collective: whoever watches the ranks ends them. Never through
    // destructors that might wait for a dead peer, nor through MPI_Abort, whose exit code would
    // hide this one.
    ::_exit(code);
  }
  if (outcome->kind == RunOutcome::Kind::kNonFinite) leave_reason(args, rank, outcome->reason);
  link->reset();  // what is queued for the agent goes first
  log_info("train", "rank ends", {{"step", outcome->step}, {"digest", outcome->digest}});
  log_flush();
  finalize_mpi();
  switch (outcome->kind) {
    case RunOutcome::Kind::kDone:
      return 0;
    case RunOutcome::Kind::kStopped:
      return kExitStopped;
    case RunOutcome::Kind::kNonFinite:
      return kExitNumeric;
  }
  return kExitInternal;
}

// What `swax generate` exits with is what every verb of the command line does.
int exit_code_of_verb(const Status& status) {
  constexpr int kUsage = 2, kNotFound = 3, kConflict = 4;
  switch (status.code()) {
    case Code::kOk:
      return 0;
    case Code::kInvalidArgument:
      return kUsage;
    case Code::kNotFound:
      return kNotFound;
    case Code::kAlreadyExists:
    case Code::kFailedPrecondition:
    case Code::kUnavailable:
    case Code::kDataLoss:
    case Code::kFenced:
      return kConflict;
    default:
      return kExitInternal;
  }
}

int generate_text(const GenerateArguments& args) {
  auto run = [&]() -> Result<int64_t> {
    GenerateOptions options;
    auto spec = read_spec(args.spec);
    // It was checked before it was stored.
    if (spec.status().code() == Code::kInvalidArgument) return data_loss(spec.status().message());
    SWAX_ASSIGN(options.spec, std::move(spec));
    options.ckpt_root = args.checkpoints;
    options.step = args.step;
    options.prompt = args.prompt;
    options.tokens = args.tokens;
    options.temperature = args.temperature;
    options.top_k = args.top_k;
    options.seed = args.seed;
    SWAX_ASSIGN(const auto backend, open_backend({}));
    return generate(*backend, options, [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    });
  };
  const auto result = run();
  if (!result.ok()) {
    std::fprintf(stderr, "swax generate: %s\n", result.status().message().c_str());
    return exit_code_of_verb(result.status());
  }
  std::fputc('\n', stdout);
  std::fflush(stdout);  // where both go to one file, the text ends first
  std::fprintf(stderr, "checkpoint of step %lld\n", static_cast<long long>(*result));
  return 0;
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  const pid_t parent = ::getppid();
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  std::signal(SIGPIPE, SIG_IGN);
  swax::configure_malloc_for_storage();
  const auto arguments = swax::parse_train_arguments(argc, argv);
  if (!arguments.ok()) {
    std::fprintf(stderr, "swax-train: %s\n", arguments.status().message().c_str());
    return 2;
  }
  if (arguments->version) {
    std::printf("swax-train %s build %s %s\n", swax::build_version(), swax::build_id(),
                swax::build_type());
    return 0;
  }
  if (arguments->doctor) {
    std::fputs(swax::doctor_lines().c_str(), stdout);
    return 0;
  }
  if (arguments->generate.has_value()) {
    swax::failpoints_init(-1);
    return swax::generate_text(*arguments->generate);
  }
  if (!swax::die_with_parent(parent)) return swax::kExitInternal;
  swax::die_with_agent();
  std::signal(SIGTERM, swax::on_signal);
  std::signal(SIGUSR1, swax::on_signal);
  return swax::train(*arguments->train);
}
