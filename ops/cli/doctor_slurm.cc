#include "ops/cli/doctor_slurm.h"

#include <sys/statfs.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>

#include "ops/cli/slurm_command.h"
#include "ops/cli/slurm_limit.h"
#include "ops/cli/slurm_queue.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "worker/agent/mpirun.h"

namespace swax {
namespace {

constexpr int64_t kAskMs = 20'000;
constexpr const char* kAskAdmin = "ask those who run the cluster";
constexpr int64_t kCredentialSeconds = 120;  // munge's default; a requeued job waits one more

DoctorRow programs_row() {
  DoctorRow row{.check = "Slurm",
                .fits = true,
                .found = "",
                .advice = "run this where jobs are submitted (Debian: slurm-client)"};
  std::string missing;
  for (const char* name : {"sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel"})
    if (!find_program(name).ok()) missing += std::string(missing.empty() ? "" : ", ") + name;
  row.fits = missing.empty();
  row.found = row.fits ? printable(said(run_command({"sbatch", "--version"}, kAskMs)))
                       : "not in PATH: " + missing;
  return row;
}

DoctorRow queue_row() {
  DoctorRow row{.check = "squeue", .fits = true, .found = "", .advice = kAskAdmin};
  const CommandResult json = run_command({"squeue", "--json"}, kAskMs);
  const auto jobs = parse_squeue_json(json.out);
  if (json.ok() && jobs.ok()) {
    row.found = to_text(jobs->size()) + " jobs, as JSON";
    return row;
  }
  const CommandResult lines = run_command({"squeue", "-h", "-o", "%i|%T|%r|%k"}, kAskMs);
  row.fits = lines.ok();
  row.found = lines.ok() ? to_text(parse_squeue_lines(lines.out).size()) + " jobs, as lines"
                         : printable(said(lines), 400);
  return row;
}

// The number behind "KEY   = 30 sec" or "KEY   = 1"; -1: no such line.
int64_t config_number(std::string_view config, std::string_view key) {
  for (const std::string_view line : split(config, '\n')) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" =", key.size());
    int64_t value = -1;
    if (begin == key.size() || begin == std::string_view::npos) continue;
    std::from_chars(line.data() + begin, line.data() + line.size(), value);
    return value;
  }
  return -1;
}

int64_t credential_seconds(std::string_view config) {
  constexpr std::string_view kKey = "cred_expire=";
  int64_t value = kCredentialSeconds;
  if (const size_t at = config.find(kKey); at != std::string_view::npos) {
    const std::string_view text = config.substr(at + kKey.size());
    std::from_chars(text.data(), text.data() + text.size(), value);
  }
  return value;
}

std::string seconds_text(int64_t seconds) {
  return seconds < 0 ? "an unknown time" : to_text(seconds) + " s";
}

std::vector<DoctorRow> own_job() {
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) return {};
  const auto limit = read_slurm_limit();
  return {
      {.check = "this job",
       .fits = true,
       .found = "Slurm job " + printable(job) +
                (limit ? ", ends in " + seconds_text(limit->left_s) : ", without a time limit")}};
}

}  // namespace

DoctorRow doctor_controller(std::string_view ping) {
  const std::string_view line = ping.substr(0, ping.find('\n'));
  return {.check = "slurmctld",
          .fits = ping.find(" UP") != std::string_view::npos,
          .found = line.empty() ? "no answer" : printable(line, 200),
          .advice = kAskAdmin};
}

DoctorRow doctor_partitions(std::string_view sinfo) {
  struct Partition {
    int64_t nodes = 0, up = 0;
    std::string limit;
  };
  std::map<std::string, Partition> partitions;
  for (const std::string_view line : split(sinfo, '\n')) {
    const std::vector<std::string_view> words = split(line, '|');
    if (words.size() != 5) continue;
    Partition& partition = partitions[printable(words[0])];
    int64_t nodes = 0;
    std::from_chars(words[3].data(), words[3].data() + words[3].size(), nodes);
    constexpr std::array<std::string_view, 3> kWork = {"idle", "allocated", "mixed"};
    const bool works =
        words[1] == "up" && std::find(kWork.begin(), kWork.end(), words[4]) != kWork.end();
    partition.limit = words[2];
    partition.nodes += nodes;
    partition.up += works ? nodes : 0;
  }
  DoctorRow row{.check = "partitions", .fits = false, .found = "", .advice = kAskAdmin};
  for (const auto& [name, partition] : partitions) {
    row.fits = row.fits || partition.up > 0;
    row.found += (row.found.empty() ? "" : "; ") + name + " " + to_text(partition.up) + " of " +
                 to_text(partition.nodes) + " nodes, limit " + printable(partition.limit);
  }
  if (row.found.empty()) row.found = "none is shown to you";
  return row;
}

std::vector<DoctorRow> doctor_times(std::string_view config) {
  const std::string silent = seconds_text(config_number(config, "SlurmdTimeout"));
  const std::string kill = seconds_text(config_number(config, "KillWait"));
  const std::string again = seconds_text(credential_seconds(config) + 1);
  return {{.check = "lost node",
           .fits = true,
           .found = "swax goes on without it after 5 s; the first node of a job is seen to be gone "
                    "by Slurm, after " +
                    silent + " (SlurmdTimeout)"},
          {.check = "requeue",
           .fits = true,
           .found = "a requeued job waits about " + again + " (cred_expire)"},
          {.check = "last notice",
           .fits = true,
           .found = "from SIGTERM to SIGKILL " + kill +
                    " (KillWait); resources.signal_seconds is the notice before a time limit, "
                    "GraceTime of the partition the one before preemption"}};
}

DoctorRow doctor_shared_folder(const std::string& folder, int64_t file_system) {
  struct Kind {
    int64_t magic;
    const char* name;
    bool shared, lasts;
  };
  constexpr std::array<Kind, 14> kKinds{{{0x6969, "NFS", true, true},
                                         {0x0BD00BD0, "Lustre", true, true},
                                         {0x47504653, "GPFS", true, true},
                                         {0x00C36400, "Ceph", true, true},
                                         {0x19830326, "BeeGFS", true, true},
                                         {0xAAD7AAEA, "PanFS", true, true},
                                         {0xFE534D42, "SMB", true, true},
                                         {0x65735546, "FUSE", true, true},
                                         {0xEF53, "ext4", false, true},
                                         {0x58465342, "XFS", false, true},
                                         {0x9123683E, "btrfs", false, true},
                                         {0x01021994, "tmpfs", false, false},
                                         {0x858458F6, "ramfs", false, false},
                                         {0x794C7630, "overlay", false, false}}};
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [file_system](const Kind& k) { return k.magic == file_system; });
  DoctorRow row{.check = "all nodes see",
                .fits = true,
                .found = folder + ": ",
                .advice = "give --state a folder that all nodes see under the same path"};
  if (kind == kKinds.end()) {
    row.found += "a file system that is not known here; all nodes must see it";
  } else if (kind->shared) {
    row.found += kind->name;
  } else {
    row.fits = kind->lasts;
    row.found += std::string(kind->name) +
                 (kind->lasts ? " of this machine; right only where the nodes mount it from here"
                              : ", which no other node sees");
  }
  return row;
}

DoctorRow doctor_mpi(std::string_view list) {
  bool pmix = false;
  for (size_t at = list.find("pmix"); at != std::string_view::npos; at = list.find("pmix", at + 1))
    pmix =
        pmix || at == 0 || std::string_view(" \t\n,").find(list[at - 1]) != std::string_view::npos;
  return {.check = "srun --mpi",
          .fits = true,
          .found = pmix ? "pmix: resources.launcher may be \"srun\""
                        : "no pmix: resources.launcher must stay \"mpirun\""};
}

std::vector<DoctorRow> doctor_slurm(const std::string& state_folder) {
  std::vector<DoctorRow> rows{programs_row()};
  if (!rows.front().fits) return rows;
  rows.push_back(doctor_controller(said(run_command({"scontrol", "ping"}, kAskMs))));
  if (!rows.back().fits) return rows;
  rows.push_back(queue_row());
  rows.push_back(
      doctor_partitions(run_command({"sinfo", "-h", "-o", "%P|%a|%l|%D|%T"}, kAskMs).out));
  const CommandResult mpi = run_command({"srun", "--mpi=list"}, kAskMs);
  rows.push_back(doctor_mpi(mpi.out + "\n" + mpi.err));
  for (DoctorRow& row : doctor_times(run_command({"scontrol", "show", "config"}, kAskMs).out))
    rows.push_back(std::move(row));
  std::string folder = state_folder;
  while (!path_exists(folder) && folder != "." && folder != "/") folder = parent_path(folder);
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) == 0)
    rows.push_back(doctor_shared_folder(folder, static_cast<int64_t>(system.f_type)));
  for (DoctorRow& row : own_job()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace swax
