// `--set section.key=value` on the tree of a spec. Private to jobs.
#pragma once

#include <vector>

#include "jobs/spec.h"
#include "jobs/toml.h"

namespace swax {

// Sets the values in the tree, in order, with the index of the override as their place. Returns the
// overrides that could not be applied (unknown field, no such list element, not a value).
std::vector<SpecProblem> apply_overrides(const std::vector<SpecOverride>& overrides,
                                         TomlNode* root);

}  // namespace swax
