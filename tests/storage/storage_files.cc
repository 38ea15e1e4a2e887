#include "tests/storage/storage_files.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace swax::test {
namespace fs = std::filesystem;

TempDir::TempDir(Place place) {
  constexpr const char* kMemoryFolder = "/dev/shm";
  const bool memory = place == Place::kMemory && access(kMemoryFolder, W_OK) == 0;
  std::string pattern = memory ? kMemoryFolder : SWAX_BINARY_DIR;
  pattern += "/swax-storage-XXXXXX";
  const char* const made = mkdtemp(pattern.data());
  if (made == nullptr) {
    ADD_FAILURE() << "mkdtemp " << pattern;
    std::abort();
  }
  path_ = made;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

TinyDisk::TinyDisk(const std::string& folder, const std::string& options) : folder_(folder) {
  fs::create_directories(folder_);
  mounted_ = mount("tmpfs", folder_.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

TinyDisk::~TinyDisk() {
  if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
}

void fill_disk(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT, 0644);
  ASSERT_GE(fd, 0) << path;
  const std::string block(4096, 'f');
  while (write(fd, block.data(), block.size()) > 0) {
  }
  close(fd);
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void set_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  EXPECT_TRUE(out.good()) << path;
}

void flip_bit(const std::string& path, int64_t byte, int bit) {
  std::string bytes = bytes_of(path);
  ASSERT_LT(static_cast<size_t>(byte), bytes.size()) << path;
  bytes[static_cast<size_t>(byte)] ^= static_cast<char>(1 << bit);
  set_bytes(path, bytes);
}

void cut_file(const std::string& path, int64_t bytes_less) {
  const int64_t size = static_cast<int64_t>(fs::file_size(path));
  ASSERT_GE(size, bytes_less) << path;
  fs::resize_file(path, static_cast<uintmax_t>(size - bytes_less));
}

std::map<std::string, std::string> tree_of(const std::string& folder) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().string().substr(folder.size() + 1);
    tree[name] = entry.is_regular_file() ? bytes_of(entry.path().string()) : "";
  }
  return tree;
}

std::vector<std::string> files_like(const std::string& folder, const std::string& prefix,
                                    const std::string& suffix) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string hex_of(const std::string& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<uint8_t>(c) >> 4];
    text += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

bool full_tests() { return std::getenv("SWAX_TEST_FULL") != nullptr; }

}  // namespace swax::test
