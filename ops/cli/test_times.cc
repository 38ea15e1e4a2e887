#include "ops/cli/test_times.h"

#include <charconv>
#include <cstdlib>

#include "proto/base/text.h"

namespace swax {

Status apply_test_times(const char* variable, const TestFields& fields) {
  const char* list = std::getenv(variable);
  if (list == nullptr) return ok();
  for (const std::string_view entry : split(list, ',')) {
    const size_t equals = entry.find('=');
    const auto field = fields.find(entry.substr(0, equals));
    if (equals == std::string_view::npos || field == fields.end())
      return invalid_argument(std::string(variable) + ": " + printable(entry));
    const std::string_view value = entry.substr(equals + 1);
    const auto end = std::from_chars(value.data(), value.data() + value.size(), *field->second);
    if (end.ec != std::errc{} || *field->second <= 0)
      return invalid_argument(std::string(variable) + ": " + printable(entry));
  }
  return ok();
}

}  // namespace swax
