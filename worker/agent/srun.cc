#include "worker/agent/srun.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kHostsMax = 65'536;
constexpr size_t kDigitsMax = 9;

// Where Slurm's configuration is and who we are to it: of the place, not of the worker's step.
constexpr std::array<std::string_view, 2> kKept{"SLURM_CONF=", "SLURM_JWT="};

// As mpirun gets them (mpirun.cc says why); what only its daemons read is not among them.
constexpr std::array<std::string_view, 5> kSettings{
    "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader,tcp",
    "OMPI_MCA_btl_vader_single_copy_mechanism=none", "OMPI_MCA_shmem=mmap",
    // Else all ranks of a node that Slurm did not bind share its first core.
    "OMPI_MCA_hwloc_base_binding_policy=none"};

Status refused(const std::string& why) {
  return failed_precondition("resources.launcher=\"srun\": " + why);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

std::optional<uint64_t> number(std::string_view digits) {
  uint64_t value = 0;
  if (digits.empty() || digits.size() > kDigitsMax) return std::nullopt;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end.ec != std::errc{} || end.ptr != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// One entry of a list: the text in front of the first bracket, each number in it, and the rest.
void expand(const std::string& head, std::string_view entry, std::vector<std::string>* out) {
  if (out->size() >= kHostsMax) return;
  const size_t open = entry.find('[');
  const size_t close = entry.find(']', open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos)
    return out->push_back(head + std::string(entry));
  const std::string front = head + std::string(entry.substr(0, open));
  const std::string_view rest = entry.substr(close + 1);
  for (const std::string_view range : split(entry.substr(open + 1, close - open - 1), ',')) {
    const size_t dash = range.find('-');
    const std::string_view first_text = range.substr(0, dash);
    const auto first = number(first_text);
    const auto last = dash == std::string_view::npos ? first : number(range.substr(dash + 1));
    if (!first || !last) {
      expand(front + std::string(range), rest, out);
      continue;
    }
    for (uint64_t n = *first; n <= *last && out->size() < kHostsMax; ++n) {
      const std::string digits = to_text(n);
      const size_t zeros = first_text.size() - std::min(first_text.size(), digits.size());
      expand(front + std::string(zeros, '0') + digits, rest, out);
    }
  }
}

}  // namespace

bool starts_by_srun(const pb::StartAttempt& start) {
  return start.spec().resources().launcher() == "srun";
}

SlurmPlace slurm_place(const std::vector<std::string>& environment) {
  SlurmPlace place;
  const auto take = [&environment](std::string_view name) {
    for (const std::string& entry : environment)
      if (entry.starts_with(name)) return entry.substr(name.size());
    return std::string();
  };
  place.job = take("SLURM_JOB_ID=");
  place.node = take("SLURMD_NODENAME=");
  place.nodes = take("SLURM_JOB_NODELIST=");
  return place;
}

std::vector<std::string> slurm_hosts(std::string_view list) {
  std::vector<std::string> out;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') inside = true;
    if (i < list.size() && list[i] == ']') inside = false;
    if (i < list.size() && (inside || list[i] != ',')) continue;
    if (i > begin) expand("", list.substr(begin, i - begin), &out);
    begin = i + 1;
  }
  return out;
}

Result<std::vector<std::string>> srun_hosts(const pb::StartAttempt& start, const std::string& node,
                                            const SlurmPlace& place) {
  if (place.job.empty() || place.node.empty())
    return refused("worker " + node +
                   " does not run in a Slurm job; start it there with `swax slurm worker`, or let "
                   "mpirun start the ranks");
  const std::string own = lower(place.node);
  const std::string mark = node.starts_with(own) ? node.substr(own.size()) : "";
  const std::vector<std::string> all = slurm_hosts(place.nodes);
  const auto host_of = [&](const std::string& worker) -> std::string {
    if (worker == node) return place.node;
    if (!node.starts_with(own) || !worker.ends_with(mark)) return "";
    const std::string wanted = worker.substr(0, worker.size() - mark.size());
    const auto host = std::find_if(all.begin(), all.end(),
                                   [&wanted](const auto& h) { return lower(h) == wanted; });
    return host == all.end() ? "" : *host;
  };
  std::vector<std::string> hosts(static_cast<size_t>(start.ranks_size()));
  for (const pb::RankPlace& rank : start.ranks()) {
    if (rank.rank() >= hosts.size()) return invalid_argument("START names a rank too high");
    std::string host = host_of(rank.node());
    if (host.empty())
      return refused("worker " + rank.node() + " is not of Slurm job " + place.job + ", in which " +
                     node +
                     " runs; srun starts the ranks of one Slurm job, mpirun those of several");
    hosts[rank.rank()] = std::move(host);
  }
  for (const std::string& host : hosts)
    if (host.empty()) return invalid_argument("START leaves a rank out");
  return hosts;
}

std::vector<std::string> srun_arguments(const SrunPlan& plan) {
  const std::set<std::string> nodes(plan.hosts.begin(), plan.hosts.end());
  std::vector<std::string> out{
      plan.srun, "--jobid=" + plan.job,
      // The workers' own step holds the cores and devices.
      "--overlap", "--mpi=pmix", "--nodes=" + to_text(uint64_t{nodes.size()}),
      "--ntasks=" + to_text(uint64_t{plan.hosts.size()}),
      // Rank r runs on the r-th host of SLURM_HOSTFILE.
      "--distribution=arbitrary",
      // The agents end the other ranks; srun helps where one dies before it has said hello. It
      // must not wait for the loss of a node, nor for ranks that take their time.
      "--kill-on-bad-exit=1", "--no-kill", "--wait=0", "--cpu-bind=none", "--input=none",
      "--export=ALL"};
  out.insert(out.end(), plan.command.begin(), plan.command.end());
  return out;
}

std::vector<std::string> srun_environment(const SrunPlan& plan, std::vector<std::string> ranks,
                                          const std::vector<std::string>& own) {
  std::erase_if(ranks, [](const std::string& entry) {
    return entry.starts_with("SRUN_") || entry.starts_with("SWAX_STATE=");
  });
  ranks.push_back("SWAX_STATE=" + plan.session_folder);
  for (const std::string& entry : own)
    for (const std::string_view name : kKept)
      if (entry.starts_with(name)) ranks.push_back(entry);
  ranks.push_back("SLURM_HOSTFILE=" + srun_host_file(plan));
  for (const std::string_view setting : kSettings) ranks.emplace_back(setting);
  ranks.push_back("OMPI_MCA_btl_vader_backing_directory=" + plan.session_folder);
  const bool one_node = std::all_of(plan.hosts.begin(), plan.hosts.end(),
                                    [&plan](const auto& h) { return h == plan.hosts[0]; });
  if (one_node) ranks.emplace_back("OMPI_MCA_btl_tcp_if_include=lo");
  if (plan.share_cores) ranks.emplace_back("OMPI_MCA_mpi_yield_when_idle=1");
  return ranks;
}

std::string srun_host_file(const SrunPlan& plan) { return join_path(plan.session_folder, "hosts"); }

std::string srun_host_lines(const SrunPlan& plan) {
  std::string lines;
  for (const std::string& host : plan.hosts) lines += host + "\n";
  return lines;
}

}  // namespace swax
