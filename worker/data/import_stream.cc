#include "worker/data/import_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kInputBytes = 256 * 1024;
constexpr std::string_view kGzipMagic = "\x1f\x8b";

// Zstandard data frames and skippable frames (RFC 8878, 3.1.1 and 3.1.2).
bool has_zstd_magic(std::string_view head) {
  if (head.size() < 4) return false;
  const std::string_view rest = head.substr(1, 3);
  const bool skippable = (static_cast<unsigned char>(head[0]) & 0xF0) == 0x50;
  return head.substr(0, 4) == "\x28\xb5\x2f\xfd" || (skippable && rest == "\x2a\x4d\x18");
}

// The file itself with one buffer that the unpackers consume from.
class FileInput {
 public:
  static Result<FileInput> open(const std::string& path) {
    FileInput input;
    input.path_ = path;
    if (is_directory(path)) return invalid_argument(printable(path, 512) + ": is a directory");
    input.fd_ = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!input.fd_.valid()) {
      const int error = errno;
      std::string message = "open " + printable(path, 512) + ": ";
      message += std::generic_category().message(error);
      return error == ENOENT ? not_found(message) : failed_precondition(message);
    }
    input.buffer_.resize(kInputBytes);
    SWAX_TRY(input.fill());
    return input;
  }

  // Called with an empty buffer; it stays empty at the end of the file.
  Status fill() {
    begin_ = end_ = 0;
    while (end_ < buffer_.size()) {
      const ssize_t n = ::read(fd_.get(), buffer_.data() + end_, buffer_.size() - end_);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        return data_loss("read " + printable(path_, 512) + ": " +
                         std::generic_category().message(errno));
      }
      if (n == 0) break;
      end_ += static_cast<size_t>(n);
      bytes_read_ += n;
    }
    return ok();
  }

  std::string_view available() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void consume(size_t bytes) { begin_ += bytes; }
  int64_t bytes_read() const { return bytes_read_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd fd_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  int64_t bytes_read_ = 0;
};

Status damaged(const FileInput& input, const char* container, std::string_view what) {
  return data_loss(printable(input.path(), 512) + ": damaged " + container +
                   " data: " + printable(what));
}
Status truncated(const FileInput& input, const char* container) {
  return data_loss(printable(input.path(), 512) + ": truncated: the " + container +
                   " data ends early");
}

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(FileInput input) : input_(std::move(input)) {}
  Result<size_t> read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size()) {
      if (input_.available().empty()) SWAX_TRY(input_.fill());
      const std::string_view bytes = input_.available().substr(0, out.size() - filled);
      if (bytes.empty()) break;
      std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<ptrdiff_t>(filled));
      filled += bytes.size();
      input_.consume(bytes.size());
    }
    return filled;
  }
  int64_t stored_bytes_read() const override { return input_.bytes_read(); }

 private:
  FileInput input_;
};

// gzip members one after the other (RFC 1952, 2.2); zero bytes after the last one are padding.
class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(FileInput input) : input_(std::move(input)) {}
  ~GzipStream() override {
    if (ready_) inflateEnd(&z_);
  }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  Status init() {
    constexpr int kWindowBitsGzip = 15 + 16;
    if (inflateInit2(&z_, kWindowBitsGzip) != Z_OK) {
      return resource_exhausted("zlib: no memory to unpack " + printable(input_.path(), 512));
    }
    ready_ = true;
    return ok();
  }

  Result<size_t> read(std::span<char> out) override {
    z_.next_out = reinterpret_cast<Bytef*>(out.data());
    z_.avail_out = static_cast<uInt>(out.size());
    while (z_.avail_out > 0 && !ended_) {
      if (input_.available().empty()) SWAX_TRY(input_.fill());
      const std::string_view in = input_.available();
      if (in.empty()) {
        if (in_member_) return truncated(input_, "gzip");
        ended_ = true;
      } else if (in_member_) {
        SWAX_TRY(inflate_some(in));
      } else {
        SWAX_TRY(between_members(in));
      }
    }
    return out.size() - z_.avail_out;
  }
  int64_t stored_bytes_read() const override { return input_.bytes_read(); }

 private:
  Status inflate_some(std::string_view in) {
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));  // zlib only reads it
    z_.avail_in = static_cast<uInt>(in.size());
    const int answer = inflate(&z_, Z_NO_FLUSH);
    input_.consume(in.size() - z_.avail_in);
    if (answer == Z_STREAM_END) {
      in_member_ = false;
      return ok();
    }
    if (answer == Z_OK || answer == Z_BUF_ERROR) return ok();
    return damaged(input_, "gzip", z_.msg == nullptr ? "bad stream" : z_.msg);
  }

  Status between_members(std::string_view in) {
    if (in[0] == '\0') {
      padding_ = true;
      input_.consume(std::min(in.find_first_not_of('\0'), in.size()));
      return ok();
    }
    if (padding_ || in[0] != kGzipMagic[0]) {
      return damaged(input_, "gzip", "bytes after the last member");
    }
    if (inflateReset(&z_) != Z_OK) return internal_error("zlib: inflateReset");
    in_member_ = true;
    return ok();
  }

  FileInput input_;
  z_stream z_{};
  bool ready_ = false;
  bool in_member_ = true;
  bool padding_ = false;
  bool ended_ = false;
};

class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(FileInput input) : input_(std::move(input)), stream_(ZSTD_createDStream()) {}
  ~ZstdStream() override { ZSTD_freeDStream(stream_); }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  Status init() {
    if (stream_ != nullptr && ZSTD_isError(ZSTD_initDStream(stream_)) == 0U) return ok();
    return resource_exhausted("zstd: no memory to unpack " + printable(input_.path(), 512));
  }

  Result<size_t> read(std::span<char> out) override {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos < to.size) {
      if (input_.available().empty()) SWAX_TRY(input_.fill());
      const std::string_view bytes = input_.available();
      // At the end of the file the decoder may still hold output: ask until a call gives nothing.
      ZSTD_inBuffer from{bytes.data(), bytes.size(), 0};
      const size_t before = to.pos;
      if (bytes.empty() && wanted_ == 0) break;
      const size_t wanted = ZSTD_decompressStream(stream_, &to, &from);
      if (ZSTD_isError(wanted) != 0U) return damaged(input_, "zstd", ZSTD_getErrorName(wanted));
      input_.consume(from.pos);
      wanted_ = wanted;  // 0: a frame is complete and flushed
      if (bytes.empty() && to.pos == before && wanted_ != 0) return truncated(input_, "zstd");
    }
    return to.pos;
  }
  int64_t stored_bytes_read() const override { return input_.bytes_read(); }

 private:
  FileInput input_;
  ZSTD_DStream* stream_;
  size_t wanted_ = 1;
};

template <typename Stream>
Result<std::unique_ptr<ByteStream>> open_packed(FileInput input) {
  auto stream = std::make_unique<Stream>(std::move(input));
  SWAX_TRY(stream->init());
  return std::unique_ptr<ByteStream>(std::move(stream));
}

}  // namespace

Result<std::unique_ptr<ByteStream>> ByteStream::open(const std::string& path) {
  SWAX_ASSIGN(FileInput input, FileInput::open(path));
  const std::string_view head = input.available();
  if (head.starts_with(kGzipMagic)) return open_packed<GzipStream>(std::move(input));
  if (has_zstd_magic(head)) return open_packed<ZstdStream>(std::move(input));
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (std::string_view(path).ends_with(ending)) {
      return data_loss(printable(path, 512) + ": named " + std::string(ending) +
                       " but does not begin like one");
    }
  }
  return std::unique_ptr<ByteStream>(std::make_unique<PlainStream>(std::move(input)));
}

}  // namespace swax
