// Specs that must be refused with a short message that names the place. Used by the tests of
// load_spec and of the command line.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "jobs/spec.h"

namespace swax::test {

struct BadSpec {
  std::string name;                   // unique; letters, digits and _
  std::function<std::string()> text;  // made on demand: some are 100 MB
  std::string expect;                 // part of the messages
  std::vector<SpecOverride> sets;     // --set of a valid text
};

std::vector<BadSpec> bad_specs();

}  // namespace swax::test
