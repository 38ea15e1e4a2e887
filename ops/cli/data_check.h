// What of a job's data and of its begin can be told before anything is created. Reads files, writes
// none. Problems have their field; `where` is empty (spec_place of jobs knows it).
// Threads: one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jobs/spec.h"
#include "proto/shard.pb.h"

namespace swax {

// "data.sources[1].text": the key that says where a source comes from.
std::string source_field(const pb::JobSpec& spec, int source);

// Every source that is missing, cannot be read or does not fit the spec. What a text holds is only
// known when it is built.
std::vector<SpecProblem> source_problems(const pb::JobSpec& spec);

// Why the data set cannot be the spec's source: its tokens need a larger vocabulary, or its
// training tokens are fewer than a window and its last target, seq_len + 1.
std::optional<SpecProblem> dataset_problem(const pb::JobSpec& spec, int source,
                                           const pb::DatasetManifest& manifest);

// A warning when no source's held-out text has a window: validation would have nothing to score.
std::optional<SpecProblem> held_out_problem(const pb::JobSpec& spec,
                                            const std::vector<pb::DatasetManifest>& manifests);

// job.start = "resume" asks for a job that stands already. `missing`: what there is not, "there is
// no run in runs/x".
std::optional<SpecProblem> start_problem(const pb::JobSpec& spec, const std::string& missing);

}  // namespace swax
