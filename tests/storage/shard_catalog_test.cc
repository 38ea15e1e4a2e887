// Goal: a data set reads as one sequence of tokens with right document starts; its digest covers
// what it says and its files are refused when they differ.
// Method: small shards of known tokens (token = position), damage one file at a time.
#include "storage/shard_catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "proto/base/files.h"
#include "storage/rocks_kv.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

using test::TempDir;
using testing::HasSubstr;

// Tokens count up from `first`; documents end behind each position of `ends`.
void add_shard(const std::string& folder, const std::string& file, const std::string& split,
               uint32_t first, const std::vector<uint32_t>& ends, pb::DatasetManifest* m) {
  TokenShardInfo info;
  info.vocab_size = 257;
  info.eod_token = 256;
  auto writer = TokenShardWriter::create(join_path(folder, file), info);
  ASSERT_TRUE(writer.ok());
  uint32_t at = 0;
  for (const uint32_t end : ends) {
    for (; at < end; ++at) {
      const uint32_t token = first + at;
      ASSERT_TRUE((*writer)->append(std::span(&token, 1)).ok());
    }
    (*writer)->end_document();
  }
  const auto finished = (*writer)->finish();
  ASSERT_TRUE(finished.ok());
  pb::ShardInfo* const shard = m->add_shards();
  shard->set_file(file);
  shard->set_split(split);
  shard->set_tokens(finished->info.tokens);
  shard->set_documents(finished->info.documents);
  shard->set_bytes(finished->bytes);
  shard->set_xxh3_128(finished->file_hash.hex());
}

void add_split(const std::string& name, uint64_t tokens, uint64_t documents,
               pb::DatasetManifest* m) {
  pb::SplitInfo* const split = m->add_splits();
  split->set_name(name);
  split->set_tokens(tokens);
  split->set_documents(documents);
  split->set_text_bytes(tokens - documents);
}

class Dataset : public testing::Test {
 protected:
  void SetUp() override {
    manifest_.set_name("counting");
    manifest_.set_tokenizer("bytes");
    manifest_.set_vocab_size(257);
    manifest_.set_eod_token(256);
    manifest_.set_token_bytes(2);
    manifest_.set_document_rule("by hand");
    manifest_.set_validation_fraction(0.05);
    manifest_.set_license("public domain");
    manifest_.set_created_ms(1);
    manifest_.set_host("here");
    pb::ParentFile* const parent = manifest_.add_parents();
    parent->set_path("/somewhere");
    parent->set_bytes(5);
    parent->set_xxh3_128("ab");
    const std::string& folder = dir_.path();
    add_shard(folder, "train-0.swt", "train", 0, {4, 10}, &manifest_);
    add_shard(folder, "val-0.swt", "validation", 100, {7}, &manifest_);
    add_shard(folder, "train-1.swt", "train", 10, {1, 2, 5}, &manifest_);
    add_shard(folder, "train-2.swt", "train", 15, {20}, &manifest_);
    add_split("train", 35, 6, &manifest_);
    add_split("validation", 7, 1, &manifest_);
  }
  void write() {
    const Status status = write_dataset_manifest(dir_.path(), &manifest_);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  std::unique_ptr<DatasetReader> open(std::string_view split) {
    auto reader = DatasetReader::open(dir_.path(), split, manifest_.digest());
    EXPECT_TRUE(reader.ok()) << reader.status().to_string();
    return reader.ok() ? std::move(*reader) : nullptr;
  }
  const TempDir dir_;
  pb::DatasetManifest manifest_;
};

TEST_F(Dataset, ReadsAcrossShardBorders) {
  write();
  const auto train = open("train");
  ASSERT_EQ(train->tokens(), 35U);
  for (uint64_t begin = 0; begin <= 35; ++begin) {
    for (uint64_t count = 0; begin + count <= 35; ++count) {
      std::vector<int32_t> out(count, -1);
      ASSERT_TRUE(train->read(begin, out).ok());
      for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(out[i], static_cast<int32_t>(begin + i));
    }
  }
  std::vector<int32_t> out(2);
  EXPECT_EQ(train->read(34, out).code(), Code::kInvalidArgument);
  const auto validation = open("validation");
  ASSERT_EQ(validation->tokens(), 7U);
  ASSERT_TRUE(validation->read(5, out).ok());
  EXPECT_THAT(out, testing::ElementsAre(105, 106));
}

TEST_F(Dataset, MarksDocumentStarts) {
  write();
  const auto train = open("train");
  const std::vector<uint64_t> starts = {0, 4, 10, 11, 12, 15};
  for (uint64_t begin = 0; begin <= 35; ++begin) {
    std::vector<uint8_t> marks(35 - begin, 9);
    ASSERT_TRUE(train->document_starts(begin, marks).ok());
    for (uint64_t i = 0; i < marks.size(); ++i) {
      const bool want = std::find(starts.begin(), starts.end(), begin + i) != starts.end();
      ASSERT_EQ(marks[i], want ? 1 : 0) << "window from " << begin << ", position " << begin + i;
    }
  }
}

TEST_F(Dataset, TheDigestCoversContentAndNotPlaceOrTime) {
  const Hash128 digest = dataset_digest(manifest_);
  pb::DatasetManifest other = manifest_;
  other.set_created_ms(2);
  other.set_host("there");
  other.mutable_parents(0)->set_path("/elsewhere");
  other.set_digest("x");
  EXPECT_EQ(dataset_digest(other), digest);

  const std::vector<std::function<void(pb::DatasetManifest&)>> changes = {
      [](auto& m) { m.set_name("x"); },
      [](auto& m) { m.set_tokenizer("x"); },
      [](auto& m) { m.set_vocab_size(9); },
      [](auto& m) { m.set_eod_token(9); },
      [](auto& m) { m.set_token_bytes(1); },
      [](auto& m) { m.set_document_rule("x"); },
      [](auto& m) { m.set_validation_fraction(0.051); },
      [](auto& m) { m.set_license("x"); },
      [](auto& m) { m.mutable_shards(0)->set_file("x"); },
      [](auto& m) { m.mutable_shards(0)->set_split("x"); },
      [](auto& m) { m.mutable_shards(0)->set_tokens(9); },
      [](auto& m) { m.mutable_shards(0)->set_documents(9); },
      [](auto& m) { m.mutable_shards(0)->set_bytes(9); },
      [](auto& m) { m.mutable_shards(0)->set_xxh3_128("x"); },
      [](auto& m) { m.mutable_shards()->SwapElements(0, 2); },
      [](auto& m) { m.mutable_splits(0)->set_name("x"); },
      [](auto& m) { m.mutable_splits(0)->set_tokens(9); },
      [](auto& m) { m.mutable_splits(0)->set_documents(9); },
      [](auto& m) { m.mutable_splits(0)->set_text_bytes(9); },
      [](auto& m) { m.mutable_parents(0)->set_bytes(9); },
      [](auto& m) { m.mutable_parents(0)->set_xxh3_128("x"); },
      [](auto& m) { m.mutable_parents()->Clear(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    pb::DatasetManifest changed = manifest_;
    changes[i](changed);
    EXPECT_NE(dataset_digest(changed), digest) << "change " << i;
  }
}

TEST_F(Dataset, IsWrittenOnce) {
  write();
  const std::string digest = manifest_.digest();
  EXPECT_EQ(digest.size(), 32U);
  manifest_.set_created_ms(77);
  EXPECT_TRUE(write_dataset_manifest(dir_.path(), &manifest_).ok()) << "same content";
  EXPECT_EQ(read_dataset_manifest(dir_.path())->created_ms(), 1);
  manifest_.set_license("other");
  EXPECT_EQ(write_dataset_manifest(dir_.path(), &manifest_).code(), Code::kAlreadyExists);
  EXPECT_EQ(read_dataset_manifest(dir_.path())->digest(), digest);
}

TEST_F(Dataset, RefusesWrongManifests) {
  const std::vector<std::function<void(pb::DatasetManifest&)>> mistakes = {
      [](auto& m) { m.mutable_shards(0)->set_file("../train-0.swt"); },
      [](auto& m) { m.mutable_shards(0)->set_file("missing.swt"); },
      [](auto& m) { m.mutable_shards(0)->set_bytes(9); },
      [](auto& m) { m.mutable_splits(0)->set_tokens(34); },
      [](auto& m) { m.mutable_splits(1)->set_documents(2); },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    pb::DatasetManifest wrong = manifest_;
    mistakes[i](wrong);
    EXPECT_FALSE(write_dataset_manifest(dir_.path(), &wrong).ok()) << "mistake " << i;
  }
  EXPECT_FALSE(path_exists(dir_ / "manifest.db"));
}

TEST_F(Dataset, ReadingChangesNothingAndVerifyIsContent) {
  write();
  const auto before = test::tree_of(dir_.path());
  const auto train = open("train");
  EXPECT_TRUE(verify_dataset(dir_.path()).ok());
  EXPECT_TRUE(test::tree_of(dir_.path()) == before);
}

TEST_F(Dataset, SaysWhatIsWrong) {
  EXPECT_EQ(read_dataset_manifest(dir_.path()).status().code(), Code::kNotFound);
  write();
  EXPECT_EQ(DatasetReader::open(dir_.path(), "test", "").status().code(), Code::kNotFound);
  const Status other = DatasetReader::open(dir_.path(), "train", std::string(32, '0')).status();
  EXPECT_EQ(other.code(), Code::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr(manifest_.digest()));

  const std::string shard = dir_ / "train-1.swt";
  const std::string whole = test::bytes_of(shard);
  test::flip_bit(shard, 4096 + 3);
  EXPECT_TRUE(DatasetReader::open(dir_.path(), "train", "").ok()) << "sizes are right";
  EXPECT_THAT(verify_dataset(dir_.path()).message(),
              testing::AllOf(HasSubstr("train-1.swt"), HasSubstr("block 0")));
  std::vector<int32_t> out(35);
  EXPECT_EQ(open("train")->read(0, out).code(), Code::kDataLoss);

  test::set_bytes(shard, whole);
  test::cut_file(shard, 1);
  EXPECT_EQ(DatasetReader::open(dir_.path(), "train", "").status().code(), Code::kDataLoss);
  EXPECT_EQ(verify_dataset(dir_.path()).code(), Code::kDataLoss);

  // Another whole shard of the same size under the right name.
  test::set_bytes(shard, whole);
  pb::DatasetManifest ignored;
  add_shard(dir_.path(), "train-1.swt", "train", 11, {1, 2, 5}, &ignored);
  ASSERT_EQ(test::bytes_of(shard).size(), whole.size());
  EXPECT_THAT(verify_dataset(dir_.path()).message(), HasSubstr("XXH3-128"));

  ASSERT_EQ(unlink(shard.c_str()), 0);
  EXPECT_EQ(DatasetReader::open(dir_.path(), "train", "").status().code(), Code::kDataLoss);
}

TEST_F(Dataset, AManifestWithoutItsDigestIsRefused) {
  write();
  pb::DatasetManifest changed = manifest_;
  changed.set_license("other");
  {
    auto kv = open_rocks_kv(dir_ / "manifest.db", KvMode::kOpen);
    ASSERT_TRUE(kv.ok());
    ASSERT_TRUE((*kv)->write({{"manifest", changed.SerializeAsString()}}, true).ok());
  }
  EXPECT_EQ(read_dataset_manifest(dir_.path()).status().code(), Code::kDataLoss);
  {
    auto kv = open_rocks_kv(dir_ / "manifest.db", KvMode::kOpen);
    ASSERT_TRUE((*kv)->write({{"manifest", std::nullopt}}, true).ok());
  }
  EXPECT_EQ(read_dataset_manifest(dir_.path()).status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace swax
