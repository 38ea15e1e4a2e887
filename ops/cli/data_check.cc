#include "ops/cli/data_check.h"

#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/build.h"

namespace swax {
namespace {

SpecProblem problem_of(std::string field, std::string message) {
  return {.where = "", .field = std::move(field), .message = std::move(message)};
}

std::optional<SpecProblem> source_problem(const pb::JobSpec& spec, int index) {
  const pb::DataSource& source = spec.data().sources(index);
  const std::string field = source_field(spec, index);
  if (!source.text().empty()) {
    const Status found = find_text(source.text());
    if (found.ok()) return std::nullopt;
    return problem_of(field, found.message());
  }
  if (!path_exists(source.path()))
    return problem_of(field, printable(source.path(), 200) + " does not exist");
  const Result<pb::DatasetManifest> manifest = read_dataset_manifest(source.path());
  if (!manifest.ok()) return problem_of(field, manifest.status().message());
  return dataset_problem(spec, index, *manifest);
}

}  // namespace

std::string source_field(const pb::JobSpec& spec, int source) {
  const bool text = !spec.data().sources(source).text().empty();
  return "data.sources[" + to_text(source) + (text ? "].text" : "].path");
}

std::vector<SpecProblem> source_problems(const pb::JobSpec& spec) {
  std::vector<SpecProblem> problems;
  for (int i = 0; i < spec.data().sources_size(); ++i)
    if (auto problem = source_problem(spec, i)) problems.push_back(std::move(*problem));
  return problems;
}

std::optional<SpecProblem> dataset_problem(const pb::JobSpec& spec, int source,
                                           const pb::DatasetManifest& manifest) {
  if (manifest.vocab_size() > spec.model().vocab_size())
    return problem_of("model.vocab_size", to_text(uint64_t{spec.model().vocab_size()}) +
                                              " is too small for " + source_field(spec, source) +
                                              "; nearest valid value is " +
                                              to_text(uint64_t{manifest.vocab_size()}));
  return std::nullopt;
}

}  // namespace swax
