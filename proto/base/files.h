// POSIX files with Status. Every write that must survive a crash goes through write_atomic or sync_dir.
// Codes of errno: README.md. Messages name the path. Threads: pure functions on the file system.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"

namespace swax {

Result<std::string> read_file(const std::string& path, int64_t bytes_max);  // kNotFound, kResourceExhausted if larger
Status write_atomic(const std::string& path, std::string_view bytes);       // tmp + fsync + rename + directory fsync
Status append_line(int fd, std::string_view line);                          // line + '\n' by one write(2)
Status make_dirs(const std::string& path);                                  // like mkdir -p, each new level synced
Status remove_tree(const std::string& path);                                // missing is ok; links are not followed
Status sync_dir(const std::string& path);
Status sync_file(const std::string& path);
bool path_exists(const std::string& path);
bool is_directory(const std::string& path);
Result<int64_t> file_bytes(const std::string& path);
Result<std::vector<std::string>> list_dir(const std::string& path);         // names, sorted, without . and ..
Result<int64_t> free_bytes(const std::string& path);                        // statvfs, for non-root
std::string join_path(std::string_view a, std::string_view b);              // an absolute b stands alone
std::string parent_path(std::string_view path);                             // "." for a bare name

// Owner of a descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& o) noexcept : fd_(o.release()) {}
  Fd& operator=(Fd&& o) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// Exclusive advisory lock on a file (flock) while the object lives. kFailedPrecondition when another holder has it.
Result<Fd> lock_file(const std::string& path);

}  // namespace swax
