#include "worker/train/launcher.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <thread>

#include "proto/base/text.h"
#include "worker/train/exit_codes.h"

namespace swax {
namespace {

std::optional<int64_t> number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto parsed = std::from_chars(text, end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  return value;
}

int64_t first_of(std::initializer_list<const char*> names, int64_t fallback) {
  for (const char* name : names)
    if (const auto value = number(name)) return *value;
  return fallback;
}

}  // namespace

LocalRank local_rank() {
  return {.rank = first_of({"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}, 0),
          .size = first_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "SWAX_RANKS_HERE"}, 1)};
}

Status check_rank_number(int rank) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"}) {
    const auto told = number(name);
    if (told && *told != rank)
      return failed_precondition("MPI says rank " + to_text(rank) + ", " + name + "=" +
                                 to_text(*told));
  }
  return ok();
}

bool die_with_parent(pid_t parent_at_start) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return ::getppid() == parent_at_start;
}

void die_with_agent() {
  const auto agent = number("SWAX_AGENT_FD");
  if (!agent) return;
  std::thread([fd = static_cast<int>(*agent)] {
    pollfd end{.fd = fd, .events = POLLIN, .revents = 0};
    while (::poll(&end, 1, -1) < 0 && errno == EINTR) {
    }
    if ((end.revents & POLLIN) != 0) ::_exit(kExitRetry);
  }).detach();
}

}  // namespace swax
