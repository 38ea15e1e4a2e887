// Goal: whatever happens to the files of a committed checkpoint is seen before a wrong value is
// used, and a full disk leaves nothing half written.
// Method: one committed checkpoint is copied and damaged in one way; expected verdicts stand here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>

#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/rng.h"
#include "storage/byte_order.h"
#include "storage/checkpoint_db.h"
#include "storage/checkpoint_layout.h"
#include "storage/container.h"
#include "tests/storage/checkpoint_fixture.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr CheckpointName kName{7, 2};

class Damage : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    whole_ = std::make_unique<TempDir>();
    ASSERT_TRUE(test::save(whole_->path(), kName, 2).ok());
  }
  static void TearDownTestSuite() { whole_.reset(); }
  void SetUp() override {
    fs::copy(whole_->path(), dir_.path(), fs::copy_options::recursive);
    ASSERT_TRUE(verify().ok());
  }
  std::string folder() const { return dir_ / kName.folder(); }
  std::string rank(int number, const std::string& kind) const {
    return folder() + "/rank-0000" + std::to_string(number) + kind;
  }
  // Of rank 1's database: the only file whose name starts and ends so.
  std::string one_file(const std::string& prefix, const std::string& suffix) const {
    const auto files = test::files_like(rank(1, ".db"), prefix, suffix);
    EXPECT_EQ(files.size(), 1U) << prefix << "*" << suffix;
    return files.empty() ? "" : files[0];
  }
  Status verify() const { return verify_checkpoint(dir_.path(), kName, {}); }
  // The whole checkpoint is refused, by verifying and by whoever reads rank 1's part.
  void expect_loss(const std::string& says) const {
    for (const Status& status : {verify(), test::load_and_compare(dir_.path(), kName, 1)}) {
      EXPECT_EQ(status.code(), Code::kDataLoss) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr(says));
    }
  }
  static std::unique_ptr<TempDir> whole_;
  const TempDir dir_;
};
std::unique_ptr<TempDir> Damage::whole_;

TEST_F(Damage, AFlippedBitInAValueNamesTheTensor) {
  const std::string table = one_file("0", ".sst");
  test::flip_bit(table, 1000000, 5);
  expect_loss("tensor model/wide");
  auto reader = CheckpointReader::open(dir_.path(), kName);
  ASSERT_TRUE(reader.ok()) << "found when the chunk is read, not before";
  std::vector<float> out(21);
  EXPECT_TRUE((*reader)->read(1, 0, out).ok()) << "other chunks are whole";
  EXPECT_EQ((*reader)->read(0, 1100 * 1024 - 21, out).code(), Code::kDataLoss);
  EXPECT_EQ((*reader)->read(0, 1100 * 1024 - 21, out).code(), Code::kDataLoss) << "and again";
}

TEST_F(Damage, ACutTable) {
  test::cut_file(one_file("0", ".sst"), 1);
  expect_loss(".sst: ");
}

TEST_F(Damage, AMissingTable) {
  ASSERT_EQ(unlink(one_file("0", ".sst").c_str()), 0);
  expect_loss(".sst: missing");
}

TEST_F(Damage, ACutManifest) {
  test::cut_file(one_file("MANIFEST", ""), 20);
  expect_loss("MANIFEST");
}

TEST_F(Damage, ACutOrFlippedLog) {
  const std::string log = one_file("0", ".log");
  const std::string bytes = test::bytes_of(log);
  test::cut_file(log, 3);
  expect_loss(".log: ");
  test::set_bytes(log, bytes);
  test::flip_bit(log, static_cast<int64_t>(bytes.size()) / 2);
  expect_loss(".log: ");
}

TEST_F(Damage, AMissingDatabaseOrShardFile) {
  ASSERT_TRUE(remove_tree(rank(1, ".db")).ok());
  expect_loss("rank-00001.db");
  ASSERT_TRUE(remove_tree(rank(0, ".shard")).ok());
  EXPECT_EQ(CheckpointReader::open(dir_.path(), kName).status().code(), Code::kDataLoss);
}

TEST_F(Damage, DatabasesOfTwoRanksSwapped) {
  fs::rename(rank(0, ".db"), rank(2, ".db"));
  fs::rename(rank(1, ".db"), rank(0, ".db"));
  fs::rename(rank(2, ".db"), rank(1, ".db"));
  expect_loss("rank-0000");
}

TEST_F(Damage, AShardFileOfAnotherStepWithRightDigests) {
  ASSERT_TRUE(test::write_rank(dir_.path(), {8, 2}, 1, 2).ok());
  fs::copy_file(dir_ / "step-000000008.a2/rank-00001.shard", rank(1, ".shard"),
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(verify().code(), Code::kDataLoss);
}

TEST_F(Damage, ForeignFilesInADatabaseAreRefusedBesideItIgnored) {
  test::set_bytes(folder() + "/notes.txt", "x");
  test::set_bytes(dir_ / "notes.txt", "x");
  EXPECT_TRUE(verify().ok());
  EXPECT_EQ(test::good_checkpoints(dir_.path()).size(), 1U);
  test::set_bytes(rank(1, ".db") + "/999999.log", "x");
  expect_loss("999999.log: does not belong");
}

TEST_F(Damage, WithoutCommittedThereIsNoCheckpoint) {
  ASSERT_EQ(unlink((folder() + "/COMMITTED").c_str()), 0);
  EXPECT_THAT(test::good_checkpoints(dir_.path()), IsEmpty());
  EXPECT_EQ(CheckpointReader::open(dir_.path(), kName).status().code(), Code::kNotFound);
  EXPECT_EQ(verify().code(), Code::kNotFound);
}

TEST_F(Damage, EveryBitOfCommittedCounts) {
  const std::string path = folder() + "/COMMITTED";
  const std::string bytes = test::bytes_of(path);
  for (size_t at = 0; at < bytes.size(); at += test::full_tests() ? 1 : 13) {
    test::flip_bit(path, static_cast<int64_t>(at), static_cast<int>(at % 8));
    ASSERT_THAT(test::good_checkpoints(dir_.path()), IsEmpty()) << "byte " << at;
    ASSERT_EQ(CheckpointReader::open(dir_.path(), kName).status().code(), Code::kDataLoss);
    test::set_bytes(path, bytes);
  }
  for (size_t size = 0; size < bytes.size(); size += 7) {
    test::set_bytes(path, bytes.substr(0, size));
    ASSERT_THAT(test::good_checkpoints(dir_.path()), IsEmpty()) << size << " bytes";
  }
}

TEST_F(Damage, ADamagedCommittedIsToldFromAMissingOneUntilItIsMarked) {
  const auto newest = [this] { return list_checkpoints(dir_.path())->front(); };
  EXPECT_EQ(newest().read, Code::kOk);
  test::flip_bit(folder() + "/COMMITTED", 40, 3);
  EXPECT_EQ(newest().read, Code::kDataLoss);
  EXPECT_FALSE(newest().committed);
  ASSERT_TRUE(mark_bad(dir_.path(), kName, "seen").ok());
  EXPECT_EQ(newest().read, Code::kOk);
  EXPECT_THAT(newest().problem, HasSubstr("marked bad"));
  ASSERT_EQ(unlink((folder() + "/COMMITTED").c_str()), 0);
  ASSERT_EQ(unlink((folder() + "/BAD").c_str()), 0);
  EXPECT_EQ(newest().read, Code::kNotFound);
}

// A mount that is away, no descriptors, no right: nothing is said of the bytes.
TEST_F(Damage, WhatCannotBeReadNowIsNotDamaged) {
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit few = usual;
  few.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const Status opened = verify();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_EQ(opened.code(), Code::kResourceExhausted) << opened.to_string();
  EXPECT_TRUE(verify().ok());
}

TEST_F(Damage, AnotherVersionIsNamed) {
  const std::string path = folder() + "/COMMITTED";
  const std::string bytes = test::bytes_of(path);
  const std::string payload(*decode_container(kCommittedKind, bytes));
  test::set_bytes(path, encode_container({kCommittedKind.magic, 2}, payload));
  EXPECT_THAT(CheckpointReader::open(dir_.path(), kName).status().message(),
              HasSubstr("version=2"));
  pb::CheckpointManifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(payload));
  manifest.set_format_version(9);
  test::set_bytes(path, encode_container(kCommittedKind, manifest.SerializeAsString()));
  EXPECT_THAT(CheckpointReader::open(dir_.path(), kName).status().message(),
              HasSubstr("format_version=9"));
}

TEST_F(Damage, ATensorDigestThatDoesNotFitItsValues) {
  auto manifest = read_committed(dir_.path(), kName);
  ASSERT_TRUE(manifest.ok());
  manifest->mutable_tensors(4)->set_digest1(manifest->tensors(4).digest1() + 1);
  test::set_bytes(folder() + "/COMMITTED",
                  encode_container(kCommittedKind, manifest->SerializeAsString()));
  EXPECT_EQ(verify().code(), Code::kDataLoss);
  EXPECT_THAT(verify().message(), HasSubstr("adam_m/row"));
}

// Any bit of any file: the small files are under digests as a whole; a table may have a bit that
// carries no value (padding, properties), then every value must still be right.
TEST_F(Damage, AnyFlippedBitIsFoundOrHarmless) {
  const auto files = test::files_like(folder(), "", "");
  const int tries = test::full_tests() ? 400 : 30;
  int found = 0;
  for (int i = 0; i < tries; ++i) {
    const PhiloxBlock draw = random_block(11, Purpose::kTest, static_cast<uint64_t>(i));
    const std::string& path = files[draw[0] % files.size()];
    if (is_directory(path) || *file_bytes(path) == 0) continue;
    const std::string bytes = test::bytes_of(path);
    test::flip_bit(path, draw[1] % static_cast<int64_t>(bytes.size()), draw[2] % 8);
    const Status status = verify();
    if (status.ok()) {
      EXPECT_TRUE(path.ends_with(".sst")) << path;
      EXPECT_TRUE(test::load_and_compare(dir_.path(), kName, 1).ok());
    } else {
      EXPECT_EQ(status.code(), Code::kDataLoss) << status.to_string();
      ++found;
    }
    test::set_bytes(path, bytes);
  }
  EXPECT_GT(found, tries / 3);
}

// What RocksDB itself makes of a cut MANIFEST: at best an error, at worst an empty database. Below
// the digests of the small files this is the second net.
TEST(ShardDb, ACutManifestShowsNoValueAsAnother) {
  const TempDir dir;
  ASSERT_TRUE(test::write_rank(dir.path(), kName, 0, 1).ok());
  const std::string db = dir / (kName.folder() + "/rank-00000.db");
  const auto manifests = test::files_like(db, "MANIFEST", "");
  ASSERT_EQ(manifests.size(), 1U);
  test::cut_file(manifests[0], 20);
  const auto before = test::tree_of(db);
  const auto reader = ShardDbReader::open(db);
  if (reader.ok()) {
    EXPECT_EQ((*reader)->chunk(0, 0).status().code(), Code::kDataLoss);
  } else {
    EXPECT_EQ(reader.status().code(), Code::kDataLoss);
  }
  EXPECT_TRUE(test::tree_of(db) == before) << "reading must not remove healthy tables";
}

TEST(DiskFull, IsSeenBeforeWriting) {
  const TempDir dir;
  const test::TinyDisk disk(dir / "disk", "size=4m");
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount";
  const Status status = test::write_rank(dir / "disk/ckpt", kName, 0, 1).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("free: must be at least"));
  EXPECT_THAT(test::files_like(dir / "disk", "rank-", ""), IsEmpty());
}

// No inode left at each file in turn: every step of the protocol meets "No space left on device".
TEST(DiskFull, AtEachNewFileTheRankLeavesNothing) {
  const TempDir dir;
  int refused = 0;
  for (int inodes = 4; inodes < 40; ++inodes) {
    const test::TinyDisk disk(dir / "disk", "size=32m,nr_inodes=" + std::to_string(inodes));
    if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount";
    const std::string root = dir / "disk/ckpt";
    const auto shard = test::write_rank(root, kName, 0, 1, true);
    if (shard.ok()) {
      EXPECT_GT(refused, 5);
      return;
    }
    ++refused;
    EXPECT_EQ(shard.status().code(), Code::kResourceExhausted)
        << inodes << ": " << shard.status().to_string();
    EXPECT_THAT(test::files_like(dir / "disk", "rank-", ""), IsEmpty()) << inodes;
    EXPECT_THAT(test::good_checkpoints(root), IsEmpty());
  }
  FAIL() << "40 files were not enough";
}

// Another process fills the disk while the tables are written.
TEST(DiskFull, InTheMiddleOfTheValuesTheRankLeavesNothing) {
  const TempDir dir;
  bool met = false;
  for (int round = 0; round < 20 && !met; ++round) {
    const test::TinyDisk disk(dir / "disk", "size=48m");
    if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount";
    const std::string root = dir / "disk/ckpt";
    const std::string stage = root + "/" + kName.folder() + "/rank-00000.stage";
    std::atomic<bool> over{false};
    std::thread filler([&] {
      while (!over && !path_exists(stage + "/0.sst")) std::this_thread::yield();
      if (!over) test::fill_disk(dir / "disk", "filler");
    });
    const std::vector<float> data(static_cast<size_t>(40 * kMiB / 4), 1.0F);
    const std::vector<ShardRange> ranges = {{0, 0, data}};
    const auto shard = write_shard({.ckpt_root = root, .name = kName}, ranges);
    over = true;
    filler.join();
    if (shard.ok()) continue;
    met = true;
    EXPECT_EQ(shard.status().code(), Code::kResourceExhausted) << shard.status().to_string();
    EXPECT_THAT(test::files_like(dir / "disk", "rank-", ""), IsEmpty());
  }
  EXPECT_TRUE(met);
}

}  // namespace
}  // namespace swax
