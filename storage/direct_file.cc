#include "storage/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/ids.h"

namespace swax {
namespace {

constexpr size_t kAlignBytes = 4096;  // of addresses, offsets and sizes of direct writes
constexpr size_t kBufferBytes = static_cast<size_t>(8 * kMiB);
constexpr int kBuffers = 3;  // one being filled, one being written, one waiting

Status errno_status(const std::string& what, int error) {
  const Code code = error == ENOSPC || error == EDQUOT || error == EFBIG ? Code::kResourceExhausted
                    : error == EIO                                       ? Code::kDataLoss
                                                                         : Code::kInternal;
  return {code, what + ": " + std::generic_category().message(error)};
}

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};

struct Buffer {
  std::unique_ptr<char, FreeMemory> memory;
  size_t filled = 0;
};

class BufferedDirectFile final : public DirectFile {
 public:
  BufferedDirectFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  ~BufferedDirectFile() override { stop(); }

  Status start();
  Status append(std::string_view bytes) override;
  Status finish() override;
  uint64_t bytes() const override { return bytes_; }

 private:
  Status take_buffer();
  void hand_over();
  Status drain();
  void stop();
  void write_loop();
  Status write_buffer(const Buffer& buffer, uint64_t offset);

  const std::string path_;
  const Fd fd_;
  uint64_t bytes_ = 0;
  bool finished_ = false;
  Buffer* current_ = nullptr;
  std::vector<Buffer> buffers_;
  std::thread thread_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Buffer*> free_;
  std::deque<Buffer*> full_;
  bool writing_ = false;
  bool stopping_ = false;
  Status error_;
};

Status BufferedDirectFile::start() {
  for (int i = 0; i < kBuffers; ++i) {
    // From malloc and not mmap: the pages of one file are warm for the next.
    char* const memory = static_cast<char*>(std::aligned_alloc(kAlignBytes, kBufferBytes));
    if (memory == nullptr) return resource_exhausted("no memory for writing " + path_);
    buffers_.push_back({std::unique_ptr<char, FreeMemory>(memory), 0});
  }
  for (Buffer& buffer : buffers_) free_.push_back(&buffer);
  thread_ = std::thread([this] { write_loop(); });
  return ok();
}

Status BufferedDirectFile::write_buffer(const Buffer& buffer, uint64_t offset) {
  for (size_t done = 0; done < buffer.filled;) {
    const ssize_t n = pwrite(fd_.get(), buffer.memory.get() + done, buffer.filled - done,
                             static_cast<off_t>(offset + done));
    if (n > 0) done += static_cast<size_t>(n);
    if (n == 0) return errno_status("write " + path_, ENOSPC);
    if (n > 0 || errno == EINTR) continue;
    // Refused for its alignment (another block size, or the rest of a short write).
    const int flags = fcntl(fd_.get(), F_GETFL);
    if (errno != EINVAL || (flags & O_DIRECT) == 0) return errno_status("write " + path_, errno);
    if (fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) != 0) {
      return errno_status("write " + path_, errno);
    }
  }
  return ok();
}

void BufferedDirectFile::write_loop() {
  uint64_t offset = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !full_.empty(); });
    if (full_.empty()) return;
    Buffer* const buffer = full_.front();
    full_.pop_front();
    if (error_.ok()) {
      writing_ = true;
      lock.unlock();
      Status status = write_buffer(*buffer, offset);
      offset += buffer->filled;
      lock.lock();
      writing_ = false;
      if (!status.ok()) error_ = std::move(status);
    }
    free_.push_back(buffer);
    changed_.notify_all();
  }
}

Status BufferedDirectFile::take_buffer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty(); });
  SWAX_TRY(error_);
  current_ = free_.back();
  free_.pop_back();
  current_->filled = 0;
  return ok();
}

void BufferedDirectFile::hand_over() {
  {
    const std::scoped_lock lock(mutex_);
    full_.push_back(current_);
  }
  current_ = nullptr;
  changed_.notify_all();
}

Status BufferedDirectFile::append(std::string_view bytes) {
  SWAX_CHECK(!finished_);
  while (!bytes.empty()) {
    if (current_ == nullptr) SWAX_TRY(take_buffer());
    const size_t count = std::min(bytes.size(), kBufferBytes - current_->filled);
    std::memcpy(current_->memory.get() + current_->filled, bytes.data(), count);
    current_->filled += count;
    bytes_ += count;
    bytes.remove_prefix(count);
    if (current_->filled == kBufferBytes) hand_over();
  }
  return ok();
}

Status BufferedDirectFile::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return full_.empty() && !writing_; });
  return error_;
}

Status BufferedDirectFile::finish() {
  if (finished_) return drain();
  finished_ = true;
  if (current_ != nullptr) {
    const size_t padded = (current_->filled + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    std::memset(current_->memory.get() + current_->filled, 0, padded - current_->filled);
    current_->filled = padded;
    hand_over();
  }
  Status status = drain();
  if (status.ok() && ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
    status = errno_status("truncate " + path_, errno);
  }
  if (status.ok() && fsync(fd_.get()) != 0) status = errno_status("fsync " + path_, errno);
  const std::scoped_lock lock(mutex_);
  error_ = status;
  return status;
}

void BufferedDirectFile::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    full_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace

Result<std::unique_ptr<DirectFile>> DirectFile::create(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  Fd fd(open(path.c_str(), kFlags | O_DIRECT, 0644));
  if (!fd.valid() && errno == EINVAL) fd = Fd(open(path.c_str(), kFlags, 0644));
  if (!fd.valid()) return errno_status("create " + path, errno);
  auto file = std::make_unique<BufferedDirectFile>(path, std::move(fd));
  SWAX_TRY(file->start());
  return std::unique_ptr<DirectFile>(std::move(file));
}

}  // namespace swax
