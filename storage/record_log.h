// Append-only file of framed records: u32 length, u64 XXH3-64 of the payload, payload
// (little-endian). What was written before a kill is read back; a torn tail is ignored. Not synced
// unless asked: it survives the process, sync() makes it survive the machine. Threads: writer and
// reader are single-threaded each; a reader may follow a file that another process is writing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "proto/base/files.h"
#include "proto/base/status.h"

namespace swax {

constexpr int64_t kRecordBytesMax = 16 * 1024 * 1024;

class RecordLogWriter {
 public:
  // Creates the file; kAlreadyExists when it exists (one attempt, one file).
  static Result<RecordLogWriter> create(const std::string& path);
  // One write(2). kResourceExhausted: disk full; the record is taken back, a later append may work.
  Status append(std::string_view payload);
  Status sync();

 private:
  explicit RecordLogWriter(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Fd fd_;
  std::string path_;
  int64_t bytes_ = 0;  // of whole records
};

class RecordLogReader {
 public:
  static Result<RecordLogReader> open(const std::string& path);
  // true and the payload; false when there is no further whole record (yet). kDataLoss when a
  // record before the tail is damaged.
  Result<bool> next(std::string* payload);
  int64_t offset() const { return offset_; }

 private:
  explicit RecordLogReader(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Fd fd_;
  std::string path_;
  int64_t offset_ = 0;
};

}  // namespace swax
