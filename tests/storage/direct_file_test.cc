// Goal: a DirectFile holds exactly what was appended, whatever the sizes, and reports a full disk.
// Method: pieces around the sizes of buffers (8 MiB) and of aligned writes (4 KiB).
#include "storage/direct_file.h"

#include <gtest/gtest.h>

#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "proto/base/ids.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(mix_bits(i / 8) >> (i % 8 * 8));
  return text;
}

void write_and_compare(const std::string& path, size_t bytes, size_t piece) {
  const std::string want = pattern(bytes);
  auto file = DirectFile::create(path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  for (size_t at = 0; at < bytes; at += piece) {
    ASSERT_TRUE((*file)->append(std::string_view(want).substr(at, piece)).ok());
  }
  EXPECT_EQ((*file)->bytes(), bytes);
  ASSERT_TRUE((*file)->finish().ok());
  EXPECT_TRUE((*file)->finish().ok());
  EXPECT_TRUE(test::bytes_of(path) == want) << bytes << " bytes in pieces of " << piece;
}

TEST(DirectFile, HoldsWhatWasAppended) {
  const test::TempDir disk;
  const test::TempDir memory(test::TempDir::Place::kMemory);
  const size_t buffer = 8 * kMiB;
  for (const std::string& folder : {disk.path(), memory.path()}) {
    const std::string path = folder + "/file";
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}}) {
      write_and_compare(path, bytes, 100);
    }
    write_and_compare(path, buffer - 1, 5000000);
    write_and_compare(path, buffer, buffer);
    write_and_compare(path, buffer + 1, 1 << 20);
    write_and_compare(path, 4 * buffer + 12345, 3 * buffer);
  }
}

TEST(DirectFile, MayBeGivenUp) {
  const test::TempDir dir;
  auto file = DirectFile::create(dir / "file");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->append(pattern(20 * kMiB)).ok());
  file->reset();  // does not wait for the disk to take everything, and does not hang
  EXPECT_EQ(DirectFile::create(dir / "no/file").status().code(), Code::kInternal);
}

TEST(DirectFile, ReportsAFullDisk) {
  const test::TempDir dir;
  const test::TinyDisk disk(dir / "disk", "size=12m");
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount";
  auto file = DirectFile::create(dir / "disk/file");
  ASSERT_TRUE(file.ok());
  const std::string block = pattern(kMiB);
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = (*file)->append(block);
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << "seen while appending";
  EXPECT_EQ((*file)->finish().code(), Code::kResourceExhausted) << "and not forgotten";

  auto tail = DirectFile::create(dir / "disk/file");
  ASSERT_TRUE(tail.ok());
  test::fill_disk(dir / "disk", "filler");
  ASSERT_TRUE((*tail)->append(block).ok()) << "still in the buffer";
  EXPECT_EQ((*tail)->finish().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace swax
