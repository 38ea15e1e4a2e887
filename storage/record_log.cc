#include "storage/record_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kFrameBytes = 12;

// Reads up to `bytes` at `offset`; short only at the end of the file.
Result<size_t> read_at(int fd, int64_t offset, char* out, size_t bytes, const std::string& path) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pread(fd, out + done, bytes - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return internal_error("read " + path + ": " + std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

}  // namespace

Result<RecordLogWriter> RecordLogWriter::create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    if (errno == EEXIST) return already_exists("record log " + path + " exists");
    return internal_error("create " + path + ": " + std::strerror(errno));
  }
  return RecordLogWriter(Fd(fd), path);
}

Status RecordLogWriter::append(std::string_view payload) {
  SWAX_CHECK(static_cast<int64_t>(payload.size()) <= kRecordBytesMax);
  std::string frame(kFrameBytes + payload.size(), '\0');
  const uint32_t length = static_cast<uint32_t>(payload.size());
  const uint64_t hash = xxh3_64(payload);
  std::memcpy(frame.data(), &length, sizeof length);
  std::memcpy(frame.data() + 4, &hash, sizeof hash);
  std::memcpy(frame.data() + kFrameBytes, payload.data(), payload.size());
  size_t done = 0;
  while (done < frame.size()) {
    const ssize_t n = ::write(fd_.get(), frame.data() + done, frame.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      // A record behind half a one would read as damage.
      if (::ftruncate(fd_.get(), bytes_) != 0) return data_loss("write " + path_ + ": torn record");
      const std::string message = "write " + path_ + ": " + std::strerror(error);
      const bool full = error == ENOSPC || error == EDQUOT;
      return full ? resource_exhausted(message) : internal_error(message);
    }
    done += static_cast<size_t>(n);
  }
  bytes_ += static_cast<int64_t>(frame.size());
  return ok();
}

Status RecordLogWriter::sync() {
  if (::fdatasync(fd_.get()) != 0)
    return internal_error("sync " + path_ + ": " + std::strerror(errno));
  return ok();
}

Result<RecordLogReader> RecordLogReader::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return not_found("record log " + path + " does not exist");
    return internal_error("open " + path + ": " + std::strerror(errno));
  }
  return RecordLogReader(Fd(fd), path);
}

Result<bool> RecordLogReader::next(std::string* payload) {
  char frame[kFrameBytes];
  SWAX_ASSIGN(const size_t got, read_at(fd_.get(), offset_, frame, kFrameBytes, path_));
  if (got < kFrameBytes) return false;
  uint32_t length = 0;
  uint64_t hash = 0;
  std::memcpy(&length, frame, sizeof length);
  std::memcpy(&hash, frame + 4, sizeof hash);
  if (length > kRecordBytesMax)
    return data_loss(path_ + " offset " + to_text(offset_) + ": record length " +
                     to_text(static_cast<uint64_t>(length)) + " is beyond the limit");
  payload->resize(length);
  SWAX_ASSIGN(const size_t body, read_at(fd_.get(), offset_ + static_cast<int64_t>(kFrameBytes),
                                         payload->data(), length, path_));
  if (body < length) return false;
  if (xxh3_64(*payload) != hash)
    return data_loss(path_ + " offset " + to_text(offset_) + ": record checksum differs");
  offset_ += static_cast<int64_t>(kFrameBytes + length);
  return true;
}

}  // namespace swax
