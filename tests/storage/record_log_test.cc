// Goal: what was appended is read back in order; a torn tail is waited for, damage is named.
// Method: small records, the file cut at every length, a bit flipped, a full disk.
#include "storage/record_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/storage/storage_files.h"

namespace swax {
namespace {

const std::vector<std::string> kRecords = {"first", "", std::string("\0\1", 2), "the last one"};

void append_all(const std::string& path) {
  auto writer = RecordLogWriter::create(path);
  ASSERT_TRUE(writer.ok());
  for (const std::string& record : kRecords) ASSERT_TRUE(writer->append(record).ok());
  ASSERT_TRUE(writer->sync().ok());
}

// Whole records up to the first false or error.
std::vector<std::string> read_all(const std::string& path, Code* end) {
  std::vector<std::string> records;
  auto reader = RecordLogReader::open(path);
  EXPECT_TRUE(reader.ok());
  for (;;) {
    std::string payload;
    const Result<bool> more = reader->next(&payload);
    *end = more.status().code();
    if (!more.ok() || !*more) return records;
    records.push_back(payload);
  }
}

TEST(RecordLog, ReadsBackInOrder) {
  const test::TempDir dir;
  append_all(dir / "log");
  Code end;
  EXPECT_EQ(read_all(dir / "log", &end), kRecords);
  EXPECT_EQ(end, Code::kOk);
  EXPECT_EQ(RecordLogWriter::create(dir / "log").status().code(), Code::kAlreadyExists);
  EXPECT_EQ(RecordLogReader::open(dir / "none").status().code(), Code::kNotFound);
}

TEST(RecordLog, FollowsAWriterAndIgnoresATornTail) {
  const test::TempDir dir;
  append_all(dir / "log");
  const std::string bytes = test::bytes_of(dir / "log");
  test::set_bytes(dir / "log", "");
  auto follower = RecordLogReader::open(dir / "log");
  ASSERT_TRUE(follower.ok());
  size_t seen = 0;
  for (size_t size = 0; size <= bytes.size(); ++size) {
    test::set_bytes(dir / "log", bytes.substr(0, size));
    std::string payload;
    Result<bool> more = follower->next(&payload);
    ASSERT_TRUE(more.ok()) << size << " bytes: " << more.status().to_string();
    if (*more) {
      EXPECT_EQ(payload, kRecords[seen++]);
    }
  }
  EXPECT_EQ(seen, kRecords.size());
  EXPECT_EQ(follower->offset(), static_cast<int64_t>(bytes.size()));
}

TEST(RecordLog, DamageIsDataLoss) {
  const test::TempDir dir;
  append_all(dir / "log");
  const std::string bytes = test::bytes_of(dir / "log");
  for (const int64_t at : {int64_t{3}, int64_t{4}, int64_t{12}}) {  // length, digest, payload
    test::set_bytes(dir / "log", bytes);
    test::flip_bit(dir / "log", at, 7);
    Code end;
    EXPECT_TRUE(read_all(dir / "log", &end).empty());
    EXPECT_EQ(end, Code::kDataLoss) << "byte " << at;
  }
}

TEST(RecordLog, AFullDiskLeavesNoHalfRecord) {
  const test::TempDir dir;
  const test::TinyDisk disk(dir / "disk", "size=256k");
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount";
  auto writer = RecordLogWriter::create(dir / "disk/log");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->append("first").ok());
  test::fill_disk(dir / "disk", "filler");
  EXPECT_EQ(writer->append(std::string(100000, 'x')).code(), Code::kResourceExhausted);
  ASSERT_EQ(unlink((dir / "disk/filler").c_str()), 0);
  ASSERT_TRUE(writer->append("second").ok());
  Code end;
  EXPECT_EQ(read_all(dir / "disk/log", &end), (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(end, Code::kOk);
}

}  // namespace
}  // namespace swax
