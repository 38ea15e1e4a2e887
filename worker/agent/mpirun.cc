#include "worker/agent/mpirun.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

using Setting = std::array<const char*, 2>;

// Why each stands here: one node needs no more than shared memory and loopback, and must not look
// up its own name or listen elsewhere (if_include); 4.1 copies through the kernel only where ptrace
// is allowed (single_copy); posix shared memory would leave files in /dev/shm after a kill (shmem);
// a rank that is asked to leave may need seconds for its checkpoint (sigkill_timeout); one that has
// left on request has an exit code, for which mpirun would fall upon the others and wait out those
// seconds (abort_on_non_zero); a cut cable shows after 3.5 s instead of 8 minutes (keepalive).
constexpr std::array<Setting, 9> kSettings{{
    {"pml", "ob1"},
    {"btl_vader_single_copy_mechanism", "none"},
    {"shmem", "mmap"},
    {"odls_base_sigkill_timeout", "30"},
    {"orte_abort_on_non_zero_status", "0"},
    {"oob_tcp_keepalive_time", "2"},
    {"oob_tcp_keepalive_intvl", "1"},
    {"oob_tcp_keepalive_probes", "2"},
    {"ras", "^slurm"},
}};

constexpr std::array<Setting, 2> kLoopback{
    {{"btl_tcp_if_include", "lo"}, {"oob_tcp_if_include", "lo"}}};
// The daemons stay children of their starters, and the head node starts each of them itself.
constexpr std::array<Setting, 3> kGang{{
    {"plm", "rsh"},
    {"plm_rsh_no_tree_spawn", "1"},
    {"orte_leave_session_attached", "1"},
}};

constexpr std::array<std::string_view, 6> kOuterPrefixes{"OMPI_", "PMIX_",  "PRTE_",
                                                         "PMI_",  "SLURM_", "ORTE_"};

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

std::vector<std::string> mpirun_arguments(const MpirunPlan& plan) {
  const std::string ranks = to_text(plan.ranks);
  std::string hosts;
  for (const MpirunHost& host : plan.hosts)
    hosts += (hosts.empty() ? "" : ",") + host.name + ":" + to_text(host.slots);
  if (hosts.empty()) hosts = "localhost:" + ranks;
  std::vector<std::string> out{plan.mpirun};
  if (plan.root) out.push_back("--allow-run-as-root");
  for (const char* word : {"--host", "", "--oversubscribe", "--bind-to", "none"})
    out.push_back(*word != '\0' ? word : hosts);
  const auto set = [&out](std::string name, std::string value) {
    out.push_back("--mca");
    out.push_back(std::move(name));
    out.push_back(std::move(value));
  };
  for (const Setting& setting : kSettings) set(setting[0], setting[1]);
  // Shared memory bears the names of the machine and of a rank's number on its node: ranks of two
  // nodes on one machine would take each other's.
  set("btl", plan.shared_host ? "self,tcp" : "self,vader,tcp");
  if (plan.hosts.empty() || plan.loopback)
    for (const Setting& setting : kLoopback) set(setting[0], setting[1]);
  if (plan.hosts.empty()) {
    set("plm", "isolated");
  } else {
    for (const Setting& setting : kGang) set(setting[0], setting[1]);
    set("plm_rsh_agent", plan.launch_agent);
  }
  set("btl_vader_backing_directory", plan.session_folder);
  set("orte_tmpdir_base", plan.session_folder);
  if (plan.share_cores) set("mpi_yield_when_idle", "1");
  out.push_back("-np");
  out.push_back(ranks);
  out.insert(out.end(), plan.program.begin(), plan.program.end());
  return out;
}

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const std::vector<std::string>& own, bool root) {
  std::vector<std::string> out = own;
  if (root) {
    out.push_back("OMPI_ALLOW_RUN_AS_ROOT=1");
    out.push_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
  }
  for (const std::string& entry : inherited) {
    const std::string_view name = name_of(entry);
    const bool outer = std::any_of(kOuterPrefixes.begin(), kOuterPrefixes.end(),
                                   [name](std::string_view p) { return name.starts_with(p); });
    const bool replaced = std::any_of(own.begin(), own.end(),
                                      [name](const std::string& e) { return name_of(e) == name; });
    if (!outer && !replaced) out.push_back(entry);
  }
  return out;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> all;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry)
    all.emplace_back(*entry);
  return all;
}

Result<std::string> find_program(std::string_view name) {
  const auto runs = [](const std::string& candidate) {
    return !is_directory(candidate) && ::access(candidate.c_str(), X_OK) == 0;
  };
  char self[4096];
  const ssize_t bytes = ::readlink("/proc/self/exe", self, sizeof self);
  if (bytes > 0) {
    const std::string folder = parent_path({self, static_cast<size_t>(bytes)});
    if (const std::string beside = join_path(folder, name); runs(beside)) return beside;
  }
  const char* path = std::getenv("PATH");
  for (const std::string_view folder : split(path != nullptr ? path : "/usr/bin:/bin", ':')) {
    const std::string candidate = join_path(folder.empty() ? "." : folder, name);
    if (runs(candidate)) return candidate;
  }
  return not_found(std::string(name) + " is not in PATH");
}

}  // namespace swax
