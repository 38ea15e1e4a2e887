// Runs the program `swax` and keeps what it printed. Threads: one.
#pragma once

#include <string>
#include <vector>

namespace swax::test {

struct Finished {
  int exit_code = -1;  // 128 + n after signal n
  std::string out, err;
};

// Standard input is /dev/null. After `limit_s` seconds the program is killed (exit code 137).
Finished run_swax(const std::string& folder, const std::vector<std::string>& words,
                  int limit_s = 30);

int line_count(const std::string& text);
size_t longest_line(const std::string& text);
// Every file and folder below `folder`, sorted, as relative paths.
std::vector<std::string> tree_of(const std::string& folder);

}  // namespace swax::test
