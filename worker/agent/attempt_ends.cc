// AttemptRunner: the ends of what runs here, of ranks that nobody else sees and of children.
#include <sys/wait.h>

#include <memory>

#include "worker/agent/attempt_files.h"
#include "worker/agent/attempt_runner.h"

namespace swax {
namespace {

constexpr int64_t kLaunchLookMs = 50;
constexpr int64_t kSrunLookMs = 100;  // at every process of this node, not at children only

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace

void AttemptRunner::watch_launch(const Key& key, Running* running, int64_t now_ms) {
  if (running->ranks_came.size() >= running->ranks_here) return;
  const bool by_srun = !running->srun_mark.empty();
  if (now_ms - running->launch_ms >= (by_srun ? kSrunLookMs : kLaunchLookMs)) {
    running->launch_ms = now_ms;
    if (by_srun) {
      if (!running->session.empty() && !running->killed) look_for_ranks(key, running, now_ms);
    } else if (running->launcher) {
      running->launch.look(running->launcher->id().pid, now_ms);
    }
    for (const Remote& remote : running->remotes)
      running->launch.look(remote.child.id().pid, now_ms);
    std::set<uint32_t> ranks;
    for (const auto& [rank, path] : running->logs)
      if (rank >= 0) ranks.insert(static_cast<uint32_t>(rank));
    if (const auto lost = running->launch.lost(ranks, now_ms)) {
      running->launch.came(*lost);  // once
      events_.push(agent::RankClosed{.job = key.first, .epoch = key.second, .rank = *lost});
    }
  }
  for (const LaunchWatch::Dead& dead : running->launch.take_dead()) {
    agent::RankClosed closed{.job = key.first, .epoch = key.second, .rank = dead.rank};
    if (dead.status && WIFEXITED(*dead.status)) closed.exit_code = WEXITSTATUS(*dead.status);
    if (dead.status && WIFSIGNALED(*dead.status)) closed.signal = WTERMSIG(*dead.status);
    events_.push(std::move(closed));
  }
}

// Beside the main loop: a process of its session that waits for a disk holds only its own job up.
void AttemptRunner::end_child(Running* running, Child child, std::function<void(int status)> tell) {
  auto ended = std::make_shared<std::promise<void>>();
  running->ends.push_back(ended->get_future().share());
  start_task([child = std::make_shared<Child>(std::move(child)), tell = std::move(tell), ended] {
    tell(child->end());
    ended->set_value();
  });
}

// `status`: to be told instead of its own.
void AttemptRunner::end_launcher(const Key& key, Running* running, std::optional<int> status) {
  Child launcher = std::move(*running->launcher);
  running->launcher.reset();
  end_child(running, std::move(launcher),
            [this, key, status, log = running->launcher_log](int own) {
              const int told = status.value_or(own);
              agent::LauncherExited exited;
              exited.job = key.first;
              exited.epoch = key.second;
              if (WIFSIGNALED(told)) exited.signal = WTERMSIG(told);
              if (WIFEXITED(told)) exited.exit_code = WEXITSTATUS(told);
              exited.log_tail = tail_of(log);
              events_.push(std::move(exited));
            });
}

void AttemptRunner::end_remotes(const Key& key, Running* running) {
  for (Remote& remote : running->remotes) {
    if (!remote.child.ended()) continue;
    end_child(running, std::move(remote.child),
              [this, key, lead = remote.lead, proxy = remote.proxy](int status) {
                events_.push(agent::RemoteEnded{.job = key.first,
                                                .epoch = key.second,
                                                .lead = lead,
                                                .proxy = proxy,
                                                .exit_code = exit_code_of(status),
                                                .reason = ""});
              });
  }
  std::erase_if(running->remotes, [](const Remote& remote) { return remote.child.ended(); });
}

}  // namespace swax
