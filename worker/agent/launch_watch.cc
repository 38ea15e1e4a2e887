#include "worker/agent/launch_watch.h"

#include <charconv>

namespace swax {
namespace {

// mpirun starts the ranks of a node within milliseconds of each other. Looks are counted as well:
// they cannot become many while this process gets no time itself.
constexpr int64_t kLostMs = 2'000;
constexpr int kLostLooks = 20;

std::optional<uint32_t> rank_of(pid_t pid) {
  const std::string environment = process_environment(pid).value_or("");
  auto text = environment_value(environment, "OMPI_COMM_WORLD_RANK");
  if (!text) text = environment_value(environment, "PMIX_RANK");
  if (!text) return std::nullopt;
  uint32_t rank = 0;
  const auto end = std::from_chars(text->data(), text->data() + text->size(), rank);
  if (end.ec != std::errc{} || end.ptr != text->data() + text->size()) return std::nullopt;
  return rank;
}

}  // namespace

void LaunchWatch::look(pid_t launcher, int64_t now_ms) {
  std::vector<ProcessStat> ranks;
  bool starting = false;
  for (ProcessStat& child : child_processes(launcher)) {
    if (child.name == "swax-train") {
      ranks.push_back(std::move(child));
    } else {  // not yet; or a launch proxy
      starting = starting || (child.state != 'Z' && child.name != "swax");
    }
  }
  look(ranks, starting, now_ms);
}

void LaunchWatch::look(const std::vector<ProcessStat>& ranks, bool starting, int64_t now_ms) {
  starting_ = starting;
  ++looks_;
  for (const ProcessStat& process : ranks) {
    const auto rank = rank_of(process.id.pid);
    if (!rank || known_.contains(*rank) || ranks_.contains(*rank)) continue;
    Fd fd = open_process(process.id);
    if (!fd.valid()) continue;
    ranks_[*rank] = {.id = process.id, .process = std::move(fd)};
    newest_ms_ = now_ms;
    looks_ = 0;
  }
}

std::optional<uint32_t> LaunchWatch::lost(const std::set<uint32_t>& ranks, int64_t now_ms) const {
  const bool waited = now_ms - newest_ms_ >= kLostMs && looks_ >= kLostLooks;
  if (newest_ms_ == 0 || starting_ || !waited) return std::nullopt;
  for (const uint32_t rank : ranks)
    if (!known_.contains(rank) && !ranks_.contains(rank)) return rank;
  return std::nullopt;
}

void LaunchWatch::came(uint32_t rank) {
  known_.insert(rank);
  ranks_.erase(rank);
}

std::vector<LaunchWatch::Dead> LaunchWatch::take_dead() {
  std::vector<Dead> dead;
  for (const auto& [rank, seen] : ranks_)
    if (process_ended(seen.process))
      dead.push_back({.rank = rank, .status = ended_status(seen.process, seen.id)});
  for (const Dead& rank : dead) came(rank.rank);
  return dead;
}

void LaunchWatch::add_poll(std::vector<pollfd>* fds) const {
  for (const auto& [rank, seen] : ranks_)
    fds->push_back({.fd = seen.process.get(), .events = POLLIN, .revents = 0});
}

}  // namespace swax
