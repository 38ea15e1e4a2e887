// Logging: constant text plus key=value pairs, to stderr (and a file when asked). The only door to spdlog.
//   log_info("train", "checkpoint committed", {{"step", step}, {"bytes", bytes}});
// Level from SWAX_LOG: "debug" for all or "train=debug,storage=trace". Repeats (same subsystem and text) are limited
// to 10 a second, the rest is counted. error: the job is affected; warn: an operator may act; info: state changes.
// Threads: all functions may be called from any thread after log_init; before it the defaults (info, stderr) hold.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "proto/base/status.h"

namespace swax {

struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}
  LogField(std::string_view k, int v) : LogField(k, static_cast<int64_t>(v)) {}
  LogField(std::string_view k, unsigned v) : LogField(k, static_cast<uint64_t>(v)) {}
  LogField(std::string_view k, long v) : LogField(k, static_cast<long long>(v)) {}
  LogField(std::string_view k, unsigned long v) : LogField(k, static_cast<unsigned long long>(v)) {}
  LogField(std::string_view k, long long v);
  LogField(std::string_view k, unsigned long long v);
  LogField(std::string_view k, double v);
  std::string_view key;
  std::string value;
};
using LogFields = std::initializer_list<LogField>;

struct LogOptions {
  std::string file{};        // empty: stderr only; appended to
  std::string process{};     // shown on each line as it stands, e.g. "rank=3"; may be empty
  bool to_stderr = true;
};
// May be called again. kInvalidArgument: bad SWAX_LOG; kFailedPrecondition: the file cannot be opened. The
// settings before the call then stay in force.
Status log_init(const LogOptions& options);

void log_error(std::string_view subsystem, std::string_view text, LogFields fields = {});
void log_warn(std::string_view subsystem, std::string_view text, LogFields fields = {});
void log_info(std::string_view subsystem, std::string_view text, LogFields fields = {});
void log_debug(std::string_view subsystem, std::string_view text, LogFields fields = {});
void log_trace(std::string_view subsystem, std::string_view text, LogFields fields = {});
void log_flush();  // writes the counts of suppressed lines; every other line is flushed when it is written

}  // namespace swax
