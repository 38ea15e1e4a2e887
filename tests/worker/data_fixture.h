// Helpers of the tests of worker/data: a temporary folder, files, a sink that keeps documents, a
// child process.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "proto/job.pb.h"
#include "worker/data/document_sink.h"

namespace swax::test {

// Removed with everything in it at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  const std::string& path() const { return path_; }
  std::string write(std::string_view name, std::string_view bytes) const;  // returns the path

 private:
  std::string path_;
};

class KeepingSink final : public DocumentSink {
 public:
  Status text(std::string_view piece) override {
    open_ += piece;
    return ok();
  }
  Status end_document() override {
    documents.push_back(open_);
    open_.clear();
    return ok();
  }
  bool open() const { return !open_.empty(); }
  std::vector<std::string> documents;

 private:
  std::string open_;
};

std::string fixture(std::string_view name);  // path of tests/data/text/NAME
std::string contents(const std::string& path);
bool full_form();  // SWAX_TEST_FULL=1
bool sanitized();  // this build has a sanitizer: memory cannot be compared

// data_build_tool with these words. Killed by the destructor if it still runs.
class BuildProcess {
 public:
  explicit BuildProcess(std::vector<std::string> words, std::vector<std::string> environment = {});
  ~BuildProcess();
  BuildProcess(BuildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), output_fd_(std::exchange(other.output_fd_, -1)) {}
  BuildProcess(const BuildProcess&) = delete;
  struct Ended {
    int exit_code = -1;  // -1 after a signal
    int signal = 0;
    int64_t rss_bytes_max = 0;
    std::string output;          // stdout and stderr
    std::string digest() const;  // the line of 32 hex digits in it, or ""
  };
  Ended wait();

 private:
  pid_t pid_ = 0;
  int output_fd_ = -1;
};

// Builds a data set named `name` from documents and returns its folder.
struct BuiltDataset {
  std::string folder;
  std::string digest;
};
BuiltDataset build_documents(const TempFolder& folder, const std::string& name,
                             const std::vector<std::string>& documents, double fraction);

// A pseudo-random document of `bytes` printable bytes.
std::string random_document(uint64_t seed, uint64_t index, size_t bytes);

pb::JobSpec data_spec(uint32_t seq_len, uint32_t batch);  // without sources

}  // namespace swax::test
