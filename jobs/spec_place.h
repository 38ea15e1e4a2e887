// Where a field stands in the text of a spec: for problems that only a look at the disk or at a
// state folder finds, after load_spec. Threads: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jobs/spec.h"

namespace swax {

// SpecProblem::where of a problem with `field` ("data.sources[0].path"): "job.toml:12" or "--set
// data.sources[0].path"; the place of the section around it when the field is not given, the origin
// alone when nothing of it is. Arguments as in load_spec, which has no problem with them.
std::string spec_place(std::string_view text, std::string_view origin,
                       const std::vector<SpecOverride>& overrides, const std::string& field);

}  // namespace swax
