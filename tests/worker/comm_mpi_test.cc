// MpiCollectives against the contract of comm_contract.h. Run under mpirun by ctest, one process a
// rank:
//   comm_mpi_test contract RANKS [PIECE_LIMIT]   exit 0 when all facts hold on all ranks
//   comm_mpi_test size RANKS                     exit 0 when a world of another size is refused
//   comm_mpi_test abort RANKS                    rank 1 aborts while the others wait: must not end
//   with 0
//   comm_mpi_test reason RANKS                   an abort says its reason before the process ends
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/comm_contract.h"
#include "worker/comm/mpi_collectives.h"

namespace swax::test {
namespace {

int contract(int ranks, int64_t piece_limit) {
  auto group = init_mpi_collectives(ranks, piece_limit);
  if (!group.ok()) {
    std::fprintf(stderr, "%s\n", group.status().to_string().c_str());
    return 1;
  }
  Collectives& c = **group;
  const std::string bad = collectives_contract(c);
  if (!bad.empty()) {
    std::fprintf(stderr, "%s\n", bad.c_str());
    c.abort(bad);
  }
  std::vector<float> data(3);
  NoStream s;
  const Tensor three = Tensor::of(data.data(), DType::kF32, {3});
  const Tensor none = Tensor::of(data.data(), DType::kF32, {1});
  if (c.all_gather(s, three, none).status().code() != Code::kInvalidArgument) c.abort("all_gather");
  if (init_mpi_collectives(ranks).status().code() != Code::kFailedPrecondition) c.abort("twice");
  finalize_mpi();
  finalize_mpi();  // the second call does nothing
  return 0;
}

int wrong_size(int ranks) {
  const auto group = init_mpi_collectives(ranks + 1);
  const bool refused = group.status().code() == Code::kFailedPrecondition &&
                       group.status().message().find(std::to_string(ranks)) != std::string::npos;
  finalize_mpi();
  return refused ? 0 : 1;
}

int abort_one(int ranks) {
  auto group = init_mpi_collectives(ranks);
  if (!group.ok()) return 0;  // ctest wants a failure
  if ((*group)->rank() == 1) (*group)->abort("test");
  const Status s = (*group)->barrier();
  finalize_mpi();
  return s.ok() ? 0 : 1;
}

// From a thread that may not call MPI, as the watch over a GPU's calls does.
int abort_says_why(int ranks) {
  auto group = init_mpi_collectives(ranks, INT32_MAX, [](std::string_view reason) {
    std::fprintf(stderr, "said: %s\n", std::string(reason).c_str());
  });
  if (!group.ok()) return 1;
  (*group)->barrier().ok();
  std::thread([&] { (*group)->abort("late: rank 1"); }).join();
  return 1;
}

int run(const std::vector<std::string>& args) {
  if (args.size() < 3) return 2;
  const int ranks = std::atoi(args[2].c_str());
  if (args[1] == "contract") {
    return contract(ranks, args.size() > 3 ? std::atoi(args[3].c_str()) : INT32_MAX);
  }
  if (args[1] == "reason") return abort_says_why(ranks);
  return args[1] == "size" ? wrong_size(ranks) : abort_one(ranks);
}

}  // namespace
}  // namespace swax::test

int main(int argc, char** argv) {
  ::alarm(60);  // a rank that hangs must not outlive ctest's time limit
  return swax::test::run(std::vector<std::string>(argv, argv + argc));
}
