// Every verb of `swax` with its words, options, examples and function. Threads: plain values.
#pragma once

#include <vector>

#include "ops/cli/args.h"

namespace swax {

std::vector<VerbSpec> verb_table();

}  // namespace swax
