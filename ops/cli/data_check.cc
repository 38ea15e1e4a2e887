#include "ops/cli/data_check.h"

#include <algorithm>

#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/build.h"

namespace swax {
namespace {

SpecProblem problem_of(std::string field, std::string message, bool warning = false) {
  return {
      .where = "", .field = std::move(field), .message = std::move(message), .warning = warning};
}

int64_t tokens_of(const pb::DatasetManifest& manifest, std::string_view split) {
  for (const pb::SplitInfo& info : manifest.splits())
    if (info.name() == split) return static_cast<int64_t>(info.tokens());
  return 0;
}

int64_t seq_len_of(const pb::JobSpec& spec) { return int64_t{spec.training().seq_len()}; }

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
  const int64_t tokens = tokens_of(manifest, "train");
  if (tokens > seq_len_of(spec)) return std::nullopt;
  std::string message = to_text(seq_len_of(spec)) + " is too long for " +
                        source_field(spec, source) + ", which has " + group_digits(tokens) +
                        " training tokens: it must have seq_len + 1";
  if (tokens > 1) message += "; nearest valid value is " + to_text(tokens - 1);
  return problem_of("training.seq_len", std::move(message));
}

std::optional<SpecProblem> held_out_problem(const pb::JobSpec& spec,
                                            const std::vector<pb::DatasetManifest>& manifests) {
  int64_t most = 0;
  for (const pb::DatasetManifest& manifest : manifests)
    most = std::max(most, tokens_of(manifest, "validation"));
  if (most > seq_len_of(spec)) return std::nullopt;
  std::string message = "the held-out text has " + group_digits(most) +
                        " tokens, fewer than seq_len + 1 = " + to_text(seq_len_of(spec) + 1) +
                        ": validation has nothing to score and reports nothing";
  if (most > 1) message += "; the nearest value that leaves it a window is " + to_text(most - 1);
  return problem_of("training.seq_len", std::move(message), true);
}

std::optional<SpecProblem> start_problem(const pb::JobSpec& spec, const std::string& missing) {
  if (spec.job().start() != "resume") return std::nullopt;
  return problem_of("job.start", "\"resume\" needs something to go on from, but " + missing +
                                     "; nearest valid value is fresh");
}

}  // namespace swax
