// What of a job's data can be told before anything is created. Reads files, writes
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

// Why the data set cannot be the spec's source: its tokens need a larger vocabulary.
std::optional<SpecProblem> dataset_problem(const pb::JobSpec& spec, int source,
                                           const pb::DatasetManifest& manifest);

}  // namespace swax
