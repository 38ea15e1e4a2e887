#include "ops/cli/run_prepare.h"

#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "jobs/spec.h"
#include "ops/cli/data_check.h"
#include "ops/cli/output.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/build.h"
#include "worker/model/plan.h"

namespace swax {
namespace {

// What a rank's process takes beside its plan: program, MPI and its shared memory, RocksDB, the
// report queue. A rank of the micro preset, whose plan is 8 MiB, peaks at 44 MiB resident.
constexpr int64_t kProcessBytes = 64 * kMiB;

Result<std::string> real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&::free)> real(::realpath(path.c_str(), nullptr), &::free);
  if (!real) return not_found(printable(path, 200) + " does not exist");
  return std::string(real.get());
}

// The digest that the state's run has for the same text, when its data set still stands there.
std::string recorded_digest(const StateDir& state, const pb::JobSpec* recorded,
                            const pb::DataSource& source) {
  if (recorded == nullptr) return "";
  for (const pb::DataSource& known : recorded->data().sources()) {
    const bool same = known.text() == source.text() && known.name() == source.name();
    if (same && !known.digest().empty() &&
        is_directory(join_path(state.data_folder(), known.digest())))
      return known.digest();
  }
  return "";
}

Result<std::string> source_folder(const StateDir& state, const pb::JobSpec* recorded,
                                  const pb::DataSource& source,
                                  const std::function<void(int64_t)>& progress) {
  if (source.text().empty()) return real_path(source.path());
  std::string digest = recorded_digest(state, recorded, source);
  if (digest.empty()) {
    SWAX_TRY(find_text(source.text()));
    SWAX_ASSIGN(BuildOptions options, build_options_for_text(source.name(), source.text()));
    options.progress = progress;
    SWAX_TRY(make_dirs(state.data_folder()));
    SWAX_ASSIGN(const pb::DatasetManifest built, build_dataset(options, state.data_folder()));
    digest = built.digest();
  }
  return real_path(join_path(state.data_folder(), digest));
}

int64_t read_number_file(const std::string& path) {
  const Result<std::string> text = read_file(path, 4096);
  int64_t value = -1;
  if (text.ok()) std::from_chars(text->data(), text->data() + text->size(), value);
  return value;
}

struct Setting {
  int ranks = 1;
  std::string recompute;
  int64_t bytes = 0;  // of the host, all ranks
};

Result<Setting> plan_setting(pb::JobSpec spec, int ranks, const std::string& recompute) {
  spec.mutable_activation_checkpoint()->set_mode(recompute);
  spec.mutable_parallelism()->set_ranks(static_cast<uint32_t>(ranks));
  SWAX_ASSIGN(const MemoryPlan plan, plan_memory(spec, ranks));
  return Setting{ranks, recompute, ranks * (plan.host_bytes() + kProcessBytes)};
}

// The setting nearest to the spec's (recompute first, then ranks) that fits; its words.
std::string nearest_fit(const pb::JobSpec& spec, int64_t available_bytes) {
  std::vector<int> ranks = allowed_ranks(spec);
  std::stable_sort(ranks.begin(), ranks.end(), [&spec](int a, int b) {
    const int wanted = static_cast<int>(spec.parallelism().ranks());
    return std::abs(a - wanted) < std::abs(b - wanted);
  });
  for (const int r : ranks) {
    for (const char* mode : {"none", "light", "block"}) {
      const Result<Setting> setting = plan_setting(spec, r, mode);
      if (setting.ok() && setting->bytes <= available_bytes)
        return "; --ranks " + to_text(r) + " --set activation_checkpoint.mode=" + mode + " needs " +
               bytes_text(setting->bytes) + " and fits";
    }
  }
  return "; no allowed setting fits";
}

}  // namespace

Status prepare_data(const StateDir& state, const pb::JobSpec* recorded, pb::JobSpec* spec,
                    const std::function<void(const std::string& source, int64_t bytes)>& progress) {
  std::vector<pb::DatasetManifest> manifests;
  for (int i = 0; i < spec->data().sources_size(); ++i) {
    pb::DataSource& source = *spec->mutable_data()->mutable_sources(i);
    const std::string context = source_field(*spec, i);
    const auto report = [&](int64_t bytes) { progress(source.name(), bytes); };
    const Result<std::string> folder = source_folder(state, recorded, source, report);
    if (!folder.ok()) return folder.status().with_context(context);
    const Result<pb::DatasetManifest> manifest = read_dataset_manifest(*folder);
    if (!manifest.ok()) return manifest.status().with_context(context);
    if (const auto problem = dataset_problem(*spec, i, *manifest))
      return invalid_argument(problem->text());
    source.set_digest(manifest->digest());
    if (source.text().empty()) source.set_path(*folder);
    manifests.push_back(*manifest);
  }
  if (const auto problem = held_out_problem(*spec, manifests)) print_message(problem->text());
  return ok();
}

Result<int64_t> available_memory() {
  SWAX_ASSIGN(const std::string text, read_file("/proc/meminfo", 64 * kKiB));
  constexpr std::string_view kKey = "MemAvailable:";
  size_t at = text.find(kKey);
  if (at == std::string::npos) return not_found("/proc/meminfo has no MemAvailable");
  at = text.find_first_not_of(' ', at + kKey.size());
  int64_t kib = 0;
  if (at != std::string::npos) std::from_chars(text.data() + at, text.data() + text.size(), kib);
  int64_t bytes = kib * kKiB;
  const int64_t limit = read_number_file("/sys/fs/cgroup/memory.max");
  const int64_t used = read_number_file("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0) bytes = std::min(bytes, std::max<int64_t>(0, limit - used));
  return bytes;
}

Status check_memory(const pb::JobSpec& spec, int64_t available_bytes) {
  const int ranks = static_cast<int>(spec.parallelism().ranks());
  SWAX_ASSIGN(const Setting wanted, plan_setting(spec, ranks, spec.activation_checkpoint().mode()));
  if (wanted.bytes <= available_bytes) return ok();
  return resource_exhausted(
      to_text(ranks) + (ranks == 1 ? " rank needs " : " ranks need ") + bytes_text(wanted.bytes) +
      " of memory (" + bytes_text(wanted.bytes / ranks) + " each), " + bytes_text(available_bytes) +
      " are available" + nearest_fit(spec, available_bytes));
}

Status check_fit(const pb::JobSpec& spec) {
  const Result<int64_t> available = available_memory();
  if (!available.ok()) return ok();
  return check_memory(spec, *available);
}

int fail_input(const Status& status) {
  print_message(status.message());
  return kExitUsage;
}

}  // namespace swax
