// Checks and resolution of a spec as a message; shared by load_spec and check_spec. Private to
// jobs.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/spec.h"

namespace swax {

// Problems found so far, `where` still empty. A field that has a problem is left alone by the
// relations, so that one mistake gives one message.
struct SpecFindings {
  std::vector<SpecProblem> problems;
  std::set<std::string, std::less<>> bad;

  void error(std::string_view field, std::string message);
  void warning(std::string_view field, std::string message);
  bool good(std::initializer_list<std::string_view> fields) const;
};

void check_values(const pb::JobSpec& spec, SpecFindings* findings);     // each field alone
void check_relations(const pb::JobSpec& spec, SpecFindings* findings);  // fields together
// Sets the fallback of every field that is not in `given` (paths as in messages:
// "data.sources[0].weight").
void fill_defaults(pb::JobSpec* spec, const std::set<std::string, std::less<>>& given);
// kv_heads 0 -> heads; allowed_ranks sorted, never empty, none above the batch (warning). Before
// check_relations.
void resolve_ranks_and_heads(pb::JobSpec* spec, SpecFindings* findings);
// tokens -> steps, tokens 0: one form for one run. After check_relations, on a spec without errors.
void resolve_steps(pb::JobSpec* spec);

}  // namespace swax
