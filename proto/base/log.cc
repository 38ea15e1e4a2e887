#include "proto/base/log.h"

#include <spdlog/details/log_msg.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/text.h"

namespace swax {
namespace {

using Level = spdlog::level::level_enum;

constexpr int kLinesPerWindow = 10;
constexpr int64_t kWindowMs = 1000;
constexpr size_t kWindowsMax = 4096;     // distinct lines remembered; texts are constants
constexpr size_t kValueBytesMax = 4096;  // of one field

struct Levels {
  Level general = Level::info;
  std::map<std::string, Level, std::less<>> by_subsystem;
};

struct Window {  // of one (subsystem, text)
  int64_t begin_ms = 0;
  int lines = 0;
  int64_t suppressed = 0;
};

std::optional<Level> level_named(std::string_view name) {
  constexpr std::pair<std::string_view, Level> kNames[] = {
      {"error", Level::err},   {"warn", Level::warn},   {"info", Level::info},
      {"debug", Level::debug}, {"trace", Level::trace},
  };
  for (const auto& [known, level] : kNames) {
    if (known == name) return level;
  }
  return std::nullopt;
}

const char* padded_name(Level level) {
  switch (level) {
    case Level::err:
      return " error ";
    case Level::warn:
      return " warn  ";
    case Level::info:
      return " info  ";
    case Level::debug:
      return " debug ";
    default:
      return " trace ";
  }
}

Result<Levels> parse_levels(std::string_view text) {
  Levels levels;
  if (text.empty()) return levels;
  for (const std::string_view item : split(text, ',')) {
    const size_t equals = item.find('=');
    const bool general = equals == std::string_view::npos;
    const auto level = level_named(general ? item : item.substr(equals + 1));
    if (!level || equals == 0) {
      return invalid_argument("SWAX_LOG: \"" + printable(item) +
                              "\": must be LEVEL or SUBSYSTEM=LEVEL, LEVEL one of error, warn, "
                              "info, debug, trace");
    }
    if (general) {
      levels.general = *level;
    } else {
      levels.by_subsystem[std::string(item.substr(0, equals))] = *level;
    }
  }
  return levels;
}

// Text with spaces, quotes or nothing in it stands in quotes, so that a line splits at spaces.
void append_value(std::string& line, std::string_view value) {
  const std::string clean = printable(value, kValueBytesMax);
  if (!clean.empty() && clean.find_first_of(" \"=") == std::string::npos) {
    line += clean;
    return;
  }
  line += '"';
  for (const char c : clean) {
    if (c == '"') line += '\\';
    line += c;
  }
  line += '"';
}

void append_field(std::string& line, std::string_view key, std::string_view value) {
  line += ' ';
  line += key;
  line += '=';
  append_value(line, value);
}

// One lock for levels, windows and sinks: a line is rare beside a training step. No function
// throws; a sink that fails loses its lines (stderr or disk gone), never the job.
class Log {
 public:
  Log() : sinks_(stderr_sink()) {}

  Status init(const LogOptions& options) {
    const char* const text = std::getenv("SWAX_LOG");
    SWAX_ASSIGN(Levels levels, parse_levels(text != nullptr ? text : ""));
    std::vector<spdlog::sink_ptr> sinks;
    if (options.to_stderr) sinks = stderr_sink();
    if (!options.file.empty()) {
      try {
        sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_st>(options.file));
        sinks.back()->set_pattern("%v");
      } catch (const std::exception& e) {
        return failed_precondition("log file " + printable(options.file, 512) + ": " + e.what());
      }
    }
    const std::lock_guard lock(mutex_);
    levels_ = std::move(levels);
    process_ = options.process;
    sinks_ = std::move(sinks);
    return ok();
  }

  void write(Level level, std::string_view subsystem, std::string_view text, LogFields fields) {
    const std::lock_guard lock(mutex_);
    if (level < level_of(subsystem)) return;
    const int64_t missed = admit(subsystem, text);
    if (missed < 0) return;
    std::string line = head(level, subsystem, text);
    for (const LogField& field : fields) append_field(line, field.key, field.value);
    if (missed > 0) append_field(line, "suppressed", to_text(missed));
    put(level, line);
  }

  void flush() {
    const std::lock_guard lock(mutex_);
    report_windows();
  }

 private:
  static std::vector<spdlog::sink_ptr> stderr_sink() {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_st>();
    sink->set_pattern("%v");
    return {std::move(sink)};
  }

  Level level_of(std::string_view subsystem) const {
    const auto found = levels_.by_subsystem.find(subsystem);
    return found == levels_.by_subsystem.end() ? levels_.general : found->second;
  }

  // -1: over the limit. Otherwise the number of equal lines dropped since the last one shown.
  int64_t admit(std::string_view subsystem, std::string_view text) {
    const int64_t now = clock_.monotonic_ms();
    std::string key(subsystem);
    key += '\0';
    key += text;
    if (windows_.size() >= kWindowsMax) report_windows();
    Window& window = windows_.try_emplace(std::move(key), Window{now, 0, 0}).first->second;
    if (now - window.begin_ms >= kWindowMs) {
      const int64_t missed = window.suppressed;
      window = {now, 1, 0};
      return missed;
    }
    if (window.lines >= kLinesPerWindow) {
      ++window.suppressed;
      return -1;
    }
    ++window.lines;
    return 0;
  }

  std::string head(Level level, std::string_view subsystem, std::string_view text) {
    std::string line = utc_text(clock_.wall_ms()).text;
    line += padded_name(level);
    line += subsystem;
    if (!process_.empty()) {
      line += ' ';
      line += process_;
    }
    line += ' ';
    line += printable(text, kValueBytesMax);
    return line;
  }

  // Says what was dropped and never followed by another line, and forgets all windows.
  void report_windows() {
    for (const auto& [key, window] : windows_) {
      if (window.suppressed == 0) continue;
      const size_t zero = key.find('\0');
      const std::string_view whole = key;
      std::string line = head(Level::info, whole.substr(0, zero), whole.substr(zero + 1));
      append_field(line, "suppressed", to_text(window.suppressed));
      put(Level::info, line);
    }
    windows_.clear();
  }

  void put(Level level, const std::string& line) {
    const spdlog::details::log_msg message(spdlog::string_view_t(), level, line);
    for (const spdlog::sink_ptr& sink : sinks_) {
      try {
        sink->log(message);
        sink->flush();  // a process that is killed next must have said this line
      } catch (const std::exception&) {
        // Nowhere left to say it.
      }
    }
  }

  std::mutex mutex_;
  SystemClock clock_;
  Levels levels_;
  std::string process_;
  std::vector<spdlog::sink_ptr> sinks_;
  std::map<std::string, Window, std::less<>> windows_;
};

// Never freed: threads may log while statics are being destroyed.
Log& log() {
  static Log* const instance = std::make_unique<Log>().release();
  return *instance;
}

}  // namespace

LogField::LogField(std::string_view k, long long v) : key(k), value(to_text(int64_t{v})) {}
LogField::LogField(std::string_view k, unsigned long long v)
    : key(k), value(to_text(uint64_t{v})) {}
LogField::LogField(std::string_view k, double v) : key(k), value(to_text(v)) {}

Status log_init(const LogOptions& options) { return log().init(options); }

void log_error(std::string_view subsystem, std::string_view text, LogFields fields) {
  log().write(Level::err, subsystem, text, fields);
}
void log_warn(std::string_view subsystem, std::string_view text, LogFields fields) {
  log().write(Level::warn, subsystem, text, fields);
}
void log_info(std::string_view subsystem, std::string_view text, LogFields fields) {
  log().write(Level::info, subsystem, text, fields);
}
void log_debug(std::string_view subsystem, std::string_view text, LogFields fields) {
  log().write(Level::debug, subsystem, text, fields);
}
void log_trace(std::string_view subsystem, std::string_view text, LogFields fields) {
  log().write(Level::trace, subsystem, text, fields);
}
void log_flush() { log().flush(); }

}  // namespace swax
