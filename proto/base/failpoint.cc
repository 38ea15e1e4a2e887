#include "proto/base/failpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/check.h"
#include "proto/base/text.h"

namespace swax {
namespace internal {
std::atomic<bool> failpoints_armed{false};
}  // namespace internal

namespace {

struct Failpoint {
  std::string name;
  int64_t passage = 0;  // 1-based
  std::atomic<int64_t> passed{0};
};

struct Table {
  std::vector<std::unique_ptr<Failpoint>> points;
  std::string once_dir;
  int rank = -1;
};

// Written by failpoints_init before other threads exist, read-only afterwards. Never freed: a
// passage may come from a thread that outlives the statics.
Table& table() {
  static Table* const instance = std::make_unique<Table>().release();
  return *instance;
}

bool parse_count(std::string_view text, int64_t min, int64_t& value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc{} && end.ptr == text.data() + text.size() && value >= min;
}

// A typing error here would make a test pass without its kill, so it ends the process.
[[noreturn]] void refuse(std::string_view item) {
  std::fprintf(stderr, "SWAX_FAILPOINTS: \"%s\": must be name:N[:rank=R], N from 1\n",
               printable(item).c_str());
  std::_Exit(2);
}

void add_failpoint(std::string_view item, int rank) {
  constexpr std::string_view kRank = "rank=";
  const std::vector<std::string_view> fields = split(item, ':');
  auto point = std::make_unique<Failpoint>();
  if (fields.size() < 2 || fields.size() > 3 || fields[0].empty()) refuse(item);
  if (!parse_count(fields[1], 1, point->passage)) refuse(item);
  if (fields.size() == 3) {
    int64_t only = 0;
    if (!fields[2].starts_with(kRank)) refuse(item);
    if (!parse_count(fields[2].substr(kRank.size()), 0, only)) refuse(item);
    if (only != rank) return;
  }
  point->name = fields[0];
  table().points.push_back(std::move(point));
}

// True when this process is the first to leave the marker DIR/name.N.
bool first_to_mark(const Failpoint& point) {
  const std::string& dir = table().once_dir;
  if (dir.empty()) return true;
  const std::string marker = dir + "/" + point.name + "." + to_text(point.passage);
  const int fd = open(marker.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  close(fd);
  return true;
}

}  // namespace

void failpoints_init(int rank) {
  Table& t = table();
  t.points.clear();
  t.rank = rank;
  const char* const once_dir = std::getenv("SWAX_FAILPOINT_ONCE_DIR");
  t.once_dir = once_dir != nullptr ? once_dir : "";
  const char* const list = std::getenv("SWAX_FAILPOINTS");
  if (list != nullptr && *list != '\0') {
    for (const std::string_view item : split(list, ',')) add_failpoint(item, rank);
  }
  internal::failpoints_armed.store(!t.points.empty(), std::memory_order_release);
}

void internal::failpoint_hit(const char* name) {
  for (const auto& point : table().points) {
    if (point->name != name) continue;
    const int64_t passage = point->passed.fetch_add(1, std::memory_order_relaxed) + 1;
    if (passage != point->passage || !first_to_mark(*point)) continue;
    const std::string line = "failpoint " + point->name + ":" + to_text(passage) +
                             " rank=" + to_text(table().rank) +
                             " pid=" + to_text(int64_t{getpid()}) + " ends this process\n";
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) {
      // Nobody reads stderr; the kill is what counts.
    }
    kill(getpid(), SIGKILL);
    std::abort();  // not reached: SIGKILL cannot be held back
  }
}

}  // namespace swax
