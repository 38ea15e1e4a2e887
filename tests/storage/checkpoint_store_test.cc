// Goal: what any number of ranks wrote any number of ranks reads; a checkpoint exists exactly when
// it is committed and whole; retention keeps enough.
// Method: small tensors of known values (checkpoint_fixture), every refusal provoked once.
#include "storage/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "storage/checkpoint_db.h"
#include "tests/storage/checkpoint_fixture.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

using test::good_checkpoints;
using test::load_and_compare;
using test::save;
using test::TempDir;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

#define ASSERT_OK(expr)                               \
  do {                                                \
    const Status status_ = to_status(expr);           \
    ASSERT_TRUE(status_.ok()) << status_.to_string(); \
  } while (false)

TEST(CheckpointName, RoundTripsAndRefusesOthers) {
  EXPECT_EQ((CheckpointName{12000, 1}.folder()), "step-000012000.a1");
  EXPECT_EQ((CheckpointName{12345678901, 12}.folder()), "step-12345678901.a12");
  for (const CheckpointName name : {CheckpointName{0, 0}, {12000, 1}, {12345678901, 12}}) {
    EXPECT_EQ(*parse_checkpoint_name(name.folder()), name);
  }
  for (const char* text :
       {"", "step-", "step-1.a1", "step-000000001", "step-000000001.a", "step-000000001.a01",
        "step-000000001.a1x", "deleting-step-000000001.a1", "step-0000000001.a1",
        "step--00000001.a1", "step-99999999999999999999999.a1"}) {
    EXPECT_FALSE(parse_checkpoint_name(text).ok()) << text;
  }
  EXPECT_LT((CheckpointName{9, 9}), (CheckpointName{10, 1}));
  EXPECT_LT((CheckpointName{10, 1}), (CheckpointName{10, 2}));
}

TEST(CheckpointStore, ReshardsBetweenAnyNumbersOfRanks) {
  const TempDir root(TempDir::Place::kMemory);
  uint64_t step = 1;
  for (const uint32_t world : {1U, 3U, 2U, 8U}) {
    const CheckpointName name{step++, 1};
    ASSERT_OK(save(root.path(), name, world));
    ASSERT_OK(verify_checkpoint(root.path(), name, {}));
    for (const uint32_t readers : {1U, 2U, 3U, 8U}) {
      ASSERT_OK(load_and_compare(root.path(), name, readers));
    }
  }
}

TEST(CheckpointStore, RewritesWhatItRead) {
  const TempDir root(TempDir::Place::kMemory);
  ASSERT_OK(save(root.path(), {1, 1}, 3));
  auto reader = CheckpointReader::open(root.path(), {1, 1});
  ASSERT_OK(reader);
  // Two ranks write what three wrote; digests of tensors must not notice.
  std::vector<pb::RankShard> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    std::vector<std::vector<float>> values;
    std::vector<ShardRange> ranges;
    for (const pb::CheckpointTensor& tensor : (*reader)->manifest().tensors()) {
      const auto [begin, end] = test::part_of(test::elements_of(tensor), rank, 2);
      values.emplace_back(end - begin);
      ASSERT_OK((*reader)->read(tensor.id(), begin, values.back()));
      ranges.push_back({tensor.id(), begin, values.back()});
    }
    auto shard = write_shard(
        {.ckpt_root = root.path(), .name = {2, 1}, .rank = rank, .world_size = 2}, ranges);
    ASSERT_OK(shard);
    ranks.push_back(*shard);
  }
  pb::CheckpointManifest manifest = (*reader)->manifest();
  manifest.set_step(2);
  manifest.set_world_size(2);
  manifest.clear_ranks();
  for (const pb::RankShard& rank : ranks) *manifest.add_ranks() = rank;
  ASSERT_OK(commit_checkpoint(root.path(), manifest));
  ASSERT_OK(verify_checkpoint(root.path(), {2, 1}, {}));
}

TEST(CheckpointStore, ReadingChangesNothing) {
  const TempDir root(TempDir::Place::kMemory);
  ASSERT_OK(save(root.path(), {1, 1}, 2));
  const auto before = test::tree_of(root.path());
  int64_t last = 0;
  int64_t total = 0;
  ASSERT_OK(verify_checkpoint(root.path(), {1, 1}, [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  }));
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 4 * 1100 * 1024);
  ASSERT_OK(load_and_compare(root.path(), {1, 1}, 2));
  EXPECT_EQ(good_checkpoints(root.path()).size(), 1U);
  EXPECT_TRUE(test::tree_of(root.path()) == before);
}

TEST(CheckpointStore, ReadRefusesWrongRanges) {
  const TempDir root(TempDir::Place::kMemory);
  ASSERT_OK(save(root.path(), {1, 1}, 2));
  auto reader = CheckpointReader::open(root.path(), {1, 1});
  ASSERT_OK(reader);
  EXPECT_EQ((*reader)->tensor_id("model/none"), -1);
  std::vector<float> out(2);
  EXPECT_EQ((*reader)->read(99, 0, out).code(), Code::kInvalidArgument);
  EXPECT_EQ((*reader)->read(1, 20, out).code(), Code::kInvalidArgument);
  EXPECT_EQ((*reader)->read(1, ~uint64_t{0}, out).code(), Code::kInvalidArgument);
  EXPECT_EQ((*reader)->read(3, 0, out).code(), Code::kInvalidArgument) << "an empty tensor";
  ASSERT_OK((*reader)->read(3, 0, {}));
  ASSERT_OK((*reader)->read(1, 21, {}));
}

TEST(CheckpointStore, WriteRefusesRangesThatDoNotRise) {
  const TempDir root(TempDir::Place::kMemory);
  const std::vector<float> data(10, 1.0F);
  const ShardWriteOptions options{.ckpt_root = root.path(), .name = {1, 1}};
  const std::vector<std::vector<ShardRange>> wrong = {
      {{1, 0, data}, {0, 0, data}}, {{0, 10, data}, {0, 0, data}}, {{0, 0, data}, {0, 9, data}}};
  for (const auto& ranges : wrong) {
    EXPECT_EQ(write_shard(options, ranges).status().code(), Code::kInvalidArgument);
  }
  ShardWriteOptions outside = options;
  outside.rank = 1;
  EXPECT_EQ(write_shard(outside, {}).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(test::tree_of(root.path()).empty());
}

TEST(CheckpointStore, ReadBackAndRepeatedWrites) {
  const TempDir root(TempDir::Place::kMemory);
  const auto first = test::write_rank(root.path(), {1, 1}, 0, 1, true);
  ASSERT_OK(first);
  const auto second = test::write_rank(root.path(), {1, 1}, 0, 1, true);
  ASSERT_OK(second);
  EXPECT_EQ(first->SerializeAsString(), second->SerializeAsString());
  ASSERT_OK(commit_checkpoint(root.path(), test::fixture_manifest({1, 1}, {*second})));
  EXPECT_EQ(test::write_rank(root.path(), {1, 1}, 0, 1).status().code(), Code::kAlreadyExists);
  ASSERT_OK(verify_checkpoint(root.path(), {1, 1}, {}));
}

// Bytes this process has read by calls, page cache or not.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string key;
  int64_t value = 0;
  while (file >> key >> value)
    if (key == "rchar:") return value;
  return -1;
}

TEST(CheckpointStore, EverySaveIsReadAgainBeforeItCounts) {
  const TempDir root;
  const std::vector<float> values(4 << 20, 1.5F);
  const std::vector<ShardRange> ranges = {{.tensor_id = 0, .begin = 0, .data = values}};
  const int64_t before = bytes_read();
  ASSERT_OK(write_shard({.ckpt_root = root.path(), .name = {1, 1}}, ranges));
  EXPECT_GE(bytes_read() - before, static_cast<int64_t>(values.size() * sizeof(float)));
}

TEST(CheckpointStore, RanksWriteAtOnceButOneWriterPerRank) {
  const TempDir root(TempDir::Place::kMemory);
  std::vector<pb::RankShard> ranks(4);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto shard = test::write_rank(root.path(), {1, 1}, rank, 4);
      EXPECT_TRUE(shard.ok()) << shard.status().to_string();
      if (shard.ok()) ranks[rank] = *shard;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(commit_checkpoint(root.path(), test::fixture_manifest({1, 1}, ranks)));
  ASSERT_OK(verify_checkpoint(root.path(), {1, 1}, {}));
  EXPECT_THAT(test::files_like(root.path(), "rank-", ".lock"), IsEmpty());

  // Two of one rank: at least one finishes, none harms the other.
  int finished = 0;
  std::vector<Status> results(2);
  threads.clear();
  for (Status& result : results) {
    threads.emplace_back([&] { result = to_status(test::write_rank(root.path(), {2, 1}, 0, 1)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) {
    if (result.ok()) {
      ++finished;
    } else {
      EXPECT_EQ(result.code(), Code::kFailedPrecondition) << result.to_string();
    }
  }
  EXPECT_GE(finished, 1);

  ASSERT_OK(make_dirs(root / "step-000000003.a1"));
  const auto held = lock_file(root / "step-000000003.a1/rank-00000.lock");
  ASSERT_OK(held);
  EXPECT_EQ(test::write_rank(root.path(), {3, 1}, 0, 1).status().code(), Code::kFailedPrecondition);
}

TEST(Retention, KeepsTheNewestGoodOnesAndNeverABadOne) {
  const TempDir root(TempDir::Place::kMemory);
  EXPECT_THAT(*list_checkpoints(root / "none"), IsEmpty());
  for (const uint64_t step : {1U, 2U, 3U, 4U, 10U}) ASSERT_OK(save(root.path(), {step, 1}, 1));
  ASSERT_OK(test::write_rank(root.path(), {11, 1}, 0, 1));  // not committed
  ASSERT_OK(mark_bad(root.path(), {4, 1}, "loss jumped"));
  EXPECT_EQ(mark_bad(root.path(), {77, 1}, "").code(), Code::kNotFound);
  test::flip_bit(root / "step-000000003.a1/COMMITTED", 40);

  const auto entries = list_checkpoints(root.path());
  ASSERT_OK(entries);
  ASSERT_EQ(entries->size(), 6U);
  EXPECT_EQ((*entries)[0].problem, "not committed");
  EXPECT_EQ((*entries)[1].manifest.job(), "test");
  EXPECT_THAT((*entries)[2].problem, HasSubstr("loss jumped"));
  EXPECT_THAT((*entries)[3].problem, HasSubstr("digest"));
  EXPECT_FALSE((*entries)[3].committed);

  EXPECT_EQ(retire_checkpoints(root.path(), 0).status().code(), Code::kInvalidArgument);
  EXPECT_THAT(*retire_checkpoints(root.path(), 3), IsEmpty());
  EXPECT_THAT(*retire_checkpoints(root.path(), 2), ElementsAre(CheckpointName{1, 1}));
  EXPECT_THAT(*retire_checkpoints(root.path(), 1), ElementsAre(CheckpointName{2, 1}));
  EXPECT_THAT(*retire_checkpoints(root.path(), 1), IsEmpty());
  EXPECT_THAT(good_checkpoints(root.path()), ElementsAre("step-000000010.a1"));
  EXPECT_TRUE(is_directory(root / "step-000000004.a1")) << "bad ones stay for inspection";
  EXPECT_TRUE(is_directory(root / "step-000000003.a1")) << "damaged ones stay for inspection";
}

TEST(Retention, NeverTheLastGoodOneWhenNewerOnesAreBad) {
  const TempDir root(TempDir::Place::kMemory);
  for (const uint64_t step : {1U, 2U, 3U}) ASSERT_OK(save(root.path(), {step, 1}, 1));
  ASSERT_OK(mark_bad(root.path(), {3, 1}, "x"));
  ASSERT_OK(mark_bad(root.path(), {2, 1}, "x"));
  EXPECT_THAT(*retire_checkpoints(root.path(), 1), IsEmpty());
  EXPECT_THAT(good_checkpoints(root.path()), ElementsAre("step-000000001.a1"));
}

TEST(Sweep, RemovesDeadAttemptsAndNothingElse) {
  const TempDir root(TempDir::Place::kMemory);
  ASSERT_OK(sweep_checkpoints(root / "none", 5));
  ASSERT_OK(save(root.path(), {1, 1}, 1));
  ASSERT_OK(test::write_rank(root.path(), {2, 1}, 0, 2));
  ASSERT_OK(test::write_rank(root.path(), {2, 2}, 0, 2));  // of the live attempt
  ASSERT_OK(test::write_rank(root.path(), {3, 1}, 0, 2));
  ASSERT_OK(mark_bad(root.path(), {3, 1}, "kept to look at"));
  std::filesystem::copy(root / "step-000000001.a1", root / "deleting-step-000000000.a1",
                        std::filesystem::copy_options::recursive);
  ASSERT_OK(make_dirs(root / "foreign"));
  test::set_bytes(root / "notes.txt", "x");
  ASSERT_OK(sweep_checkpoints(root.path(), 2));
  EXPECT_THAT(*list_dir(root.path()), ElementsAre("foreign", "notes.txt", "step-000000001.a1",
                                                  "step-000000002.a2", "step-000000003.a1"));
  ASSERT_OK(sweep_checkpoints(root.path(), 2, 2));
  EXPECT_TRUE(path_exists(root / "step-000000002.a2"));
  ASSERT_OK(sweep_checkpoints(root.path(), 2, 3));  // a later save of that attempt is committed
  EXPECT_FALSE(path_exists(root / "step-000000002.a2"));
  ASSERT_OK(verify_checkpoint(root.path(), {1, 1}, {}));
}

// 60 chunks of different sizes, with the values that `chunks` point into.
struct ChunkData {
  ChunkData() {
    for (uint32_t tensor = 0; tensor < 3; ++tensor) {
      for (uint64_t begin = 0; begin < 5000; begin += 250) {
        values.emplace_back(100 + tensor * 900 + begin % 7, static_cast<char>(begin * 31 + tensor));
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      chunks.push_back({static_cast<uint32_t>(i / 20), i % 20 * 250, values[i], {}});
    }
  }
  std::vector<std::string> values;
  std::vector<DbChunk> chunks;
};

TEST(ShardDb, SpreadsOverSstFilesAndFindsEveryChunk) {
  std::vector<std::vector<uint64_t>> sizes;
  for (const int builders : {1, 2, 5, 100}) {
    const TempDir dir;
    ChunkData data;
    auto writer = ShardDbWriter::create(dir / "db", dir / "stage");
    ASSERT_OK(writer);
    const auto files =
        (*writer)->add_chunks(data.chunks, {.sst_bytes = 3000, .builders = builders});
    ASSERT_OK(files);
    EXPECT_GT(files->size(), 10U);
    sizes.emplace_back();
    for (const SstFile& file : *files) {
      EXPECT_EQ(*file_bytes(dir / ("db/" + file.name)), static_cast<int64_t>(file.bytes));
      sizes.back().push_back(file.bytes);
    }
    EXPECT_EQ(sizes.back(), sizes.front()) << "the files depend on the number of builders";
    ASSERT_OK((*writer)->put_manifest("m"));
    ASSERT_OK((*writer)->close());
    auto reader = ShardDbReader::open(dir / "db");
    ASSERT_OK(reader);
    EXPECT_EQ(*(*reader)->manifest_bytes(), "m");
    for (const DbChunk& want : data.chunks) {
      EXPECT_EQ(want.xxh3, xxh3_128(want.bytes));
      const auto chunk = (*reader)->chunk(want.tensor_id, want.begin);
      ASSERT_OK(chunk);
      EXPECT_EQ(*chunk, want.bytes);
    }
    EXPECT_EQ((*reader)->chunk(0, 1).status().code(), Code::kDataLoss);
    EXPECT_EQ((*reader)->chunk(3, 0).status().code(), Code::kDataLoss);
  }
}

TEST(ShardDb, AFileThatCannotBeBuiltIsNamedAndEndsTheBuilding) {
  for (const int builders : {1, 3}) {
    const TempDir dir;
    ChunkData data;
    auto writer = ShardDbWriter::create(dir / "db", dir / "stage");
    ASSERT_OK(writer);
    ASSERT_OK(make_dirs(dir / "stage/3.sst"));  // in the way
    const Status status =
        to_status((*writer)->add_chunks(data.chunks, {.sst_bytes = 3000, .builders = builders}));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("stage/3.sst"));
    EXPECT_TRUE(builders > 1 || !path_exists(dir / "stage/4.sst")) << "begun after an error";
    ASSERT_OK((*writer)->close());
    auto reader = ShardDbReader::open(dir / "db");
    ASSERT_OK(reader);
    EXPECT_EQ((*reader)->chunk(0, 0).status().code(), Code::kDataLoss) << "nothing came in";
  }
}

}  // namespace
}  // namespace swax
