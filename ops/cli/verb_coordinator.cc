// `swax coordinator`: serves until a signal ends it.
#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "coordinator/server.h"
#include "ops/cli/output.h"
#include "ops/cli/run_signals.h"
#include "ops/cli/test_times.h"
#include "ops/cli/verbs.h"
#include "proto/base/log.h"

namespace swax {
namespace {

constexpr int64_t kStopMs = 5000;

void wait_for_signal(RunSignals* signals) {
  pollfd item{.fd = signals->fd(), .events = POLLIN, .revents = 0};
  do {
    ::poll(&item, 1, -1);
  } while (signals->take() == 0);
}

int verb_coordinator(const Args& args) {
  RunSignals signals;  // before the server's threads: they must not take the signals
  coord::Config timing;
  const Status times = apply_test_times(
      "SWAX_TEST_COORDINATOR_TIMES",
      {{"shrink_after_ms", &timing.shrink_after_ms}, {"grow_after_ms", &timing.grow_after_ms}});
  if (!times.ok()) return fail(times);
  const Result<std::unique_ptr<coord::Server>> server =
      coord::Server::open({.state = args.text("--state"),
                           .listen = args.text("--listen"),
                           .store = args.text("--store"),
                           .insecure = args.has("--insecure"),
                           .timing = timing});
  if (!server.ok()) return fail(server.status());
  print_line("listening " + (*server)->address());
  std::fflush(stdout);
  wait_for_signal(&signals);
  log_info("coordinator", "stopping");
  if ((*server)->stop(kStopMs)) return kExitOk;
  // A disk that does not answer holds its thread for ever; everything acknowledged is on disk.
  print_message("the coordinator did not stop within 5 s; ending at once");
  ::_exit(kExitInternal);
}

}  // namespace

VerbSpec coordinator_verb() {
  return {.name = "coordinator",
          .summary = "Runs the service that takes jobs and places them on workers.",
          .details =
              "Prints `listening ADDRESS` and serves clients and workers on one port until a "
              "signal ends it; running jobs go on without it and are found again at its "
              "next start. A second coordinator on the same state or store is refused (exit 4).",
          .words = {},
          .options = {{.name = "--state",
                       .value = "DIR",
                       .doc = "folder of its state; made when missing",
                       .required = true},
                      {.name = "--listen",
                       .value = "tcp://ADDRESS:PORT",
                       .doc = "literal address; port 0 takes a free one",
                       .fallback = "tcp://127.0.0.1:0"},
                      {.name = "--store",
                       .value = "DIR",
                       .doc = "checkpoints, data and logs: one path on all nodes; default "
                              "STATE/store"},
                      {.name = "--insecure",
                       .value = "",
                       .doc = "serve an address that others reach, without keys",
                       .kind = ArgKind::kFlag}},
          .examples = {"swax coordinator --state service --listen tcp://127.0.0.1:7000"},
          .run = verb_coordinator};
}

}  // namespace swax
