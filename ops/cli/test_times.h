// Numbers that tests shorten: "NAME=VALUE,..." in an environment variable. Not for users, and not
// in any help text.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "proto/base/status.h"

namespace swax {

using TestFields = std::map<std::string_view, int64_t*>;

// The variable may be missing. INVALID_ARGUMENT: an unknown name, or a value below 1.
Status apply_test_times(const char* variable, const TestFields& fields);

}  // namespace swax
