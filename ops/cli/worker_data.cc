#include "ops/cli/worker_data.h"

#include "ops/cli/data_check.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/build.h"

namespace swax {
namespace {

constexpr int64_t kSourcesBytesMax = kMiB;

std::string sources_path(const AttemptPaths& paths) {
  return join_path(paths.job_folder, "data_sources.pb");
}

// What the job's earlier attempts found; empty: this is the first.
pb::Data known_sources(const AttemptPaths& paths) {
  pb::Data known;
  const Result<std::string> bytes = read_file(sources_path(paths), kSourcesBytesMax);
  if (!bytes.ok() || !known.ParseFromString(*bytes)) known.Clear();
  return known;
}

void take_known_digest(const pb::Data& known, pb::DataSource* source) {
  for (const pb::DataSource& before : known.sources())
    if (before.name() == source->name() && before.text() == source->text() &&
        source->digest().empty())
      source->set_digest(before.digest());
}

Result<std::string> source_folder(const pb::DataSource& source, const std::string& data) {
  if (source.text().empty()) return source.path();
  if (!source.digest().empty() && is_directory(join_path(data, source.digest())))
    return join_path(data, source.digest());
  SWAX_ASSIGN(const BuildOptions options, build_options_for_text(source.name(), source.text()));
  SWAX_TRY(make_dirs(data));
  SWAX_ASSIGN(const pb::DatasetManifest built, build_dataset(options, data));
  return join_path(data, built.digest());
}

Status check_source(const std::string& folder, int index, pb::JobSpec* spec) {
  pb::DataSource* const source = spec->mutable_data()->mutable_sources(index);
  SWAX_ASSIGN(const pb::DatasetManifest manifest, read_dataset_manifest(folder));
  if (!source->digest().empty() && manifest.digest() != source->digest())
    return failed_precondition("the data set in " + printable(folder, 400) + " is " +
                               manifest.digest() + ", the job began with " +
                               printable(source->digest(), 40));
  source->set_digest(manifest.digest());
  const auto problem = dataset_problem(*spec, index, manifest);
  return problem ? invalid_argument(problem->text()) : ok();
}

}  // namespace

Result<std::vector<std::string>> worker_data_folders(pb::JobSpec* spec, const AttemptPaths& paths) {
  std::vector<std::string> folders;
  const pb::Data known = known_sources(paths);
  for (int i = 0; i < spec->data().sources_size(); ++i) {
    pb::DataSource& source = *spec->mutable_data()->mutable_sources(i);
    const std::string context = "data source " + source.name();
    take_known_digest(known, &source);
    const Result<std::string> folder = source_folder(source, paths.data);
    if (!folder.ok()) return folder.status().with_context(context);
    const Status good = check_source(*folder, i, spec);
    if (!good.ok()) return good.with_context(context);
    folders.push_back(*folder);
  }
  if (known.sources().empty())
    SWAX_TRY(write_atomic(sources_path(paths), spec->data().SerializeAsString()));
  return folders;
}

}  // namespace swax
