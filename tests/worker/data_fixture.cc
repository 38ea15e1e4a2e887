#include "tests/worker/data_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "proto/base/rng.h"
#include "proto/base/text.h"
#include "worker/data/build.h"

namespace swax::test {

TempFolder::TempFolder() {
  const char* base = std::getenv("TMPDIR");
  path_ = std::string(base == nullptr ? "/tmp" : base) + "/swax_data_XXXXXX";
  EXPECT_NE(mkdtemp(path_.data()), nullptr);
}
TempFolder::~TempFolder() { EXPECT_TRUE(remove_tree(path_).ok()); }

std::string TempFolder::write(std::string_view name, std::string_view bytes) const {
  const std::string path = file(name);
  FILE* out = std::fopen(path.c_str(), "wb");
  EXPECT_NE(out, nullptr) << path;
  EXPECT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), out), bytes.size());
  EXPECT_EQ(std::fclose(out), 0);
  return path;
}

std::string fixture(std::string_view name) {
  return std::string(SWAX_SOURCE_DIR "/tests/data/text/") + std::string(name);
}

std::string contents(const std::string& path) {
  const Result<std::string> bytes = read_file(path, int64_t{1} << 30);
  EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
  return bytes.ok() ? *bytes : "";
}

bool full_form() {
  const char* value = std::getenv("SWAX_TEST_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

BuildProcess::BuildProcess(std::vector<std::string> words, std::vector<std::string> environment) {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  output_fd_ = fds[0];
  words.insert(words.begin(), SWAX_DATA_BUILD_TOOL);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (std::string& variable : environment) envp.push_back(variable.data());
  envp.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, fds[1], 1);
  posix_spawn_file_actions_adddup2(&files, fds[1], 2);
  EXPECT_EQ(posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), envp.data()), 0) << argv[0];
  posix_spawn_file_actions_destroy(&files);
  close(fds[1]);
}

BuildProcess::~BuildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (output_fd_ >= 0) close(output_fd_);
}

std::string BuildProcess::Ended::digest() const {
  for (const std::string_view line : split(output, '\n')) {
    if (parse_hash128(line).ok()) return std::string(line);
  }
  return "";
}

BuildProcess::Ended BuildProcess::wait() {
  Ended ended;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(output_fd_, buffer, sizeof buffer)) > 0;) {
    ended.output.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  rusage usage{};
  EXPECT_EQ(wait4(pid_, &status, 0, &usage), pid_);
  pid_ = 0;
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  ended.rss_bytes_max = int64_t{usage.ru_maxrss} * 1024;
  return ended;
}

BuiltDataset build_documents(const TempFolder& folder, const std::string& name,
                             const std::vector<std::string>& documents, double fraction) {
  std::string lines;
  for (const std::string& document : documents) lines += document + "\n";
  BuildOptions options;
  options.name = name;
  options.inputs = {folder.write(name + ".txt", lines)};
  options.documents = "line";
  options.validation_fraction = fraction;
  const Result<pb::DatasetManifest> built = build_dataset(options, folder.file("data"));
  EXPECT_TRUE(built.ok()) << built.status().to_string();
  if (!built.ok()) return {};
  return {join_path(folder.file("data"), built->digest()), built->digest()};
}

std::string random_document(uint64_t seed, uint64_t index, size_t bytes) {
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    for (const uint32_t word : random_block(seed, Purpose::kTest, index << 32 | i)) {
      if (text.size() < bytes) text += static_cast<char>('a' + word % 26);
    }
  }
  return text;
}

pb::JobSpec data_spec(uint32_t seq_len, uint32_t batch) {
  pb::JobSpec spec;
  spec.mutable_job()->set_seed(20);
  spec.mutable_model()->set_vocab_size(kByteVocab);
  spec.mutable_model()->set_doc_reset(true);
  spec.mutable_training()->set_seq_len(seq_len);
  spec.mutable_training()->set_global_batch_size(batch);
  spec.mutable_data()->set_shuffle("permute");
  return spec;
}

}  // namespace swax::test
