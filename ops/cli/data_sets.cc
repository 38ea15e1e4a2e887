#include "ops/cli/data_sets.h"

#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/build.h"

namespace swax {
namespace {

bool is_data_set(const std::string& folder) {
  return is_directory(join_path(folder, "manifest.db"));
}

DataSet read_data_set(const std::string& folder) {
  DataSet found;
  found.folder = folder;
  Result<pb::DatasetManifest> manifest = read_dataset_manifest(folder);
  found.status = manifest.status();
  if (manifest.ok()) found.manifest = std::move(manifest).value();
  return found;
}

// What a manifest built from these inputs says of its parent.
bool built_from(const pb::DatasetManifest& manifest, const BuildOptions& options) {
  std::string inputs;
  for (const std::string& input : options.inputs) inputs += (inputs.empty() ? "" : "\n") + input;
  return manifest.name() == options.name && manifest.parents_size() == 1 &&
         manifest.parents(0).path() == inputs;
}

}  // namespace

Result<std::vector<DataSet>> find_data_sets(const std::string& folder) {
  std::vector<DataSet> found;
  if (is_data_set(folder)) {
    found.push_back(read_data_set(folder));
    return found;
  }
  if (!is_directory(folder)) return not_found(printable(folder, 200) + ": no such folder");
  SWAX_ASSIGN(const std::vector<std::string> names, list_dir(folder));
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name);
    if (is_data_set(path)) found.push_back(read_data_set(path));
  }
  if (found.empty()) return not_found(printable(folder, 200) + ": no data set in it");
  return found;
}

Result<DataSet> find_source_data(const pb::DataSource& source, const std::string& store) {
  if (!source.path().empty()) {
    if (!is_data_set(source.path())) return not_found("no data set there");
    return read_data_set(source.path());
  }
  if (!source.digest().empty()) {
    const std::string folder = join_path(store, source.digest());
    if (!is_data_set(folder)) return not_found("no data set " + folder);
    return read_data_set(folder);
  }
  SWAX_ASSIGN(const BuildOptions options, build_options_for_text(source.name(), source.text()));
  Result<std::vector<DataSet>> all = find_data_sets(store);
  if (!all.ok()) return not_found("not built yet");
  for (DataSet& found : *all) {
    if (found.status.ok() && built_from(found.manifest, options)) return std::move(found);
  }
  return not_found("not built yet");
}

int64_t split_tokens(const pb::DatasetManifest& manifest, std::string_view split) {
  for (const pb::SplitInfo& info : manifest.splits()) {
    if (info.name() == split) return static_cast<int64_t>(info.tokens());
  }
  return 0;
}

}  // namespace swax
