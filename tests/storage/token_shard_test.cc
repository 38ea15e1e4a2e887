// Goal: a token shard gives back what was written, for every token size, and any damage is named.
// Method: small shards over several blocks; one bit flipped or bytes cut at known places.
#include "storage/token_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/base/files.h"
#include "proto/base/rng.h"
#include "storage/byte_order.h"
#include "storage/token_shard_format.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

using test::TempDir;
using testing::HasSubstr;

constexpr size_t kAtVersion = 8;
constexpr size_t kAtTokens = 32;

TokenShardInfo info_of(uint32_t token_bytes) {
  TokenShardInfo info;
  info.token_bytes = token_bytes;
  info.vocab_size = token_bytes == 1 ? 200 : 50000;
  info.eod_token = info.vocab_size - 1;
  info.tokenizer_digest = {1, 2};
  info.source_digest = {3, 4};
  info.name = "kjv/train";
  return info;
}

std::vector<uint32_t> some_tokens(size_t count, uint32_t vocab) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<uint32_t>((i * 2654435761U >> 7) % vocab);
  }
  return tokens;
}

TokenShardWriter::Finished write_shard_file(const std::string& path, const TokenShardInfo& info,
                                            const std::vector<uint32_t>& tokens,
                                            size_t document_tokens) {
  auto writer = TokenShardWriter::create(path, info);
  EXPECT_TRUE(writer.ok()) << writer.status().to_string();
  for (size_t at = 0; at < tokens.size(); at += document_tokens) {
    const size_t count = std::min(document_tokens, tokens.size() - at);
    EXPECT_TRUE((*writer)->append(std::span(tokens).subspan(at, count)).ok());
    (*writer)->end_document();
  }
  auto finished = (*writer)->finish();
  EXPECT_TRUE(finished.ok()) << finished.status().to_string();
  return *finished;
}

class TokenSizes : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, TokenSizes, testing::Values(1, 2, 4));

TEST_P(TokenSizes, GivesBackWhatWasWritten) {
  const TempDir dir;
  const TokenShardInfo info = info_of(GetParam());
  const size_t per_block = kTokenBlockBytes / GetParam();
  const std::vector<uint32_t> tokens = some_tokens(2 * per_block + 77, info.vocab_size);
  const auto finished = write_shard_file(dir / "a.swt", info, tokens, 1000);
  EXPECT_EQ(finished.info.tokens, tokens.size());
  EXPECT_EQ(finished.info.documents, (tokens.size() + 999) / 1000);
  const std::string bytes = test::bytes_of(dir / "a.swt");
  EXPECT_EQ(finished.bytes, bytes.size());
  EXPECT_EQ(finished.file_hash, xxh3_128(bytes));
  EXPECT_FALSE(path_exists(dir / "a.swt.tmp"));

  auto reader = TokenShardReader::open(dir / "a.swt");
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  EXPECT_EQ((*reader)->info().name, "kjv/train");
  EXPECT_EQ((*reader)->info().eod_token, info.eod_token);
  EXPECT_EQ((*reader)->info().tokenizer_digest, (Hash128{1, 2}));
  EXPECT_EQ((*reader)->info().source_digest, (Hash128{3, 4}));
  EXPECT_EQ((*reader)->document_ends().size(), finished.info.documents);
  EXPECT_EQ((*reader)->document_ends().back(), tokens.size());
  // Windows in an order that visits blocks for the first time, again, and across borders.
  for (const size_t begin :
       {per_block - 5, size_t{0}, 2 * per_block - 9, per_block + 1, size_t{3}, 2 * per_block + 1}) {
    std::vector<int32_t> out(76);
    ASSERT_TRUE((*reader)->read(begin, out).ok());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(static_cast<uint32_t>(out[i]), tokens[begin + i]) << begin << "+" << i;
    }
  }
  EXPECT_TRUE((*reader)->verify().ok());
}

TEST(TokenShard, RefusesRangesBehindTheEnd) {
  const TempDir dir;
  write_shard_file(dir / "a.swt", info_of(2), some_tokens(100, 50000), 10);
  auto reader = TokenShardReader::open(dir / "a.swt");
  ASSERT_TRUE(reader.ok());
  std::vector<int32_t> out(10);
  EXPECT_TRUE((*reader)->read(90, out).ok());
  EXPECT_EQ((*reader)->read(91, out).code(), Code::kInvalidArgument);
  EXPECT_EQ((*reader)->read(~uint64_t{0}, out).code(), Code::kInvalidArgument);
}

TEST(TokenShard, EmptyDocumentsDoNotExistAndTheLastOneEndsWithTheShard) {
  const TempDir dir;
  auto writer = TokenShardWriter::create(dir / "a.swt", info_of(2));
  ASSERT_TRUE(writer.ok());
  const std::vector<uint32_t> tokens = {1, 2, 3};
  (*writer)->end_document();
  ASSERT_TRUE((*writer)->append(tokens).ok());
  (*writer)->end_document();
  (*writer)->end_document();
  ASSERT_TRUE((*writer)->append(tokens).ok());
  ASSERT_TRUE((*writer)->finish().ok());
  auto reader = TokenShardReader::open(dir / "a.swt");
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT((*reader)->document_ends(), testing::ElementsAre(3, 6));
}

TEST(TokenShard, AnEmptyShardIsReadable) {
  const TempDir dir;
  write_shard_file(dir / "a.swt", info_of(2), {}, 1);
  auto reader = TokenShardReader::open(dir / "a.swt");
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  EXPECT_EQ((*reader)->info().tokens, 0U);
  EXPECT_TRUE((*reader)->verify().ok());
}

TEST(TokenShard, WriterRefusesBadInput) {
  const TempDir dir;
  TokenShardInfo info = info_of(2);
  info.token_bytes = 3;
  EXPECT_EQ(TokenShardWriter::create(dir / "a", info).status().code(), Code::kInvalidArgument);
  info = info_of(1);
  info.vocab_size = 257;
  EXPECT_EQ(TokenShardWriter::create(dir / "a", info).status().code(), Code::kInvalidArgument);
  info = info_of(2);
  info.eod_token = info.vocab_size;
  EXPECT_EQ(TokenShardWriter::create(dir / "a", info).status().code(), Code::kInvalidArgument);

  auto writer = TokenShardWriter::create(dir / "b", info_of(2));
  ASSERT_TRUE(writer.ok());
  const std::vector<uint32_t> outside = {50000};
  EXPECT_EQ((*writer)->append(outside).code(), Code::kInvalidArgument);
  EXPECT_FALSE((*writer)->finish().ok()) << "a refused token must not leave a shorter shard";
}

TEST(TokenShard, AnAbandonedWriterLeavesNothing) {
  const TempDir dir;
  {
    auto writer = TokenShardWriter::create(dir / "a.swt", info_of(2));
    ASSERT_TRUE(writer.ok());
    const std::vector<uint32_t> tokens = {1, 2, 3};
    ASSERT_TRUE((*writer)->append(tokens).ok());
  }
  EXPECT_TRUE(test::tree_of(dir.path()).empty());
}

TEST(TokenShard, TwoWritersOfOneFile) {
  const TempDir dir;
  auto first = TokenShardWriter::create(dir / "a.swt", info_of(2));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(TokenShardWriter::create(dir / "a.swt", info_of(2)).status().code(),
            Code::kFailedPrecondition);
}

// Damage. Three blocks of two-byte tokens.
class DamagedShard : public testing::Test {
 protected:
  void SetUp() override {
    write_shard_file(path_, info_of(2), some_tokens(3 * kTokenBlockBytes / 2, 50000), 5000);
  }
  const TempDir dir_;
  const std::string path_ = dir_ / "a.swt";
};

TEST_F(DamagedShard, AFlippedBitNamesShardAndBlock) {
  test::flip_bit(path_, kTokenHeaderBytes + kTokenBlockBytes + 12345, 3);
  auto reader = TokenShardReader::open(path_);
  ASSERT_TRUE(reader.ok());
  std::vector<int32_t> out(100);
  EXPECT_TRUE((*reader)->read(0, out).ok()) << "block 0 is whole";
  const Status status = (*reader)->read(kTokenBlockBytes / 2, out);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr(path_), HasSubstr("block 1"),
                                               HasSubstr("stored"), HasSubstr("computed")));
  EXPECT_EQ((*reader)->verify().code(), Code::kDataLoss);
  EXPECT_EQ((*reader)->read(kTokenBlockBytes / 2, out).code(), Code::kDataLoss)
      << "a second read must not pass";
}

TEST_F(DamagedShard, EveryByteIsUnderSomeDigest) {
  const std::string whole = test::bytes_of(path_);
  const int tries = test::full_tests() ? 2000 : 60;
  for (int i = 0; i < tries; ++i) {
    // Half of the flips in the header and the tables, which are small.
    const uint64_t draw = random_block(7, Purpose::kTest, static_cast<uint64_t>(i))[0];
    const uint64_t at = i % 4 == 0   ? draw % kTokenHeaderBytes
                        : i % 4 == 1 ? whole.size() - 1 - draw % 8000
                                     : draw % whole.size();
    std::string bytes = whole;
    bytes[at] ^= static_cast<char>(1 << (i % 8));
    test::set_bytes(path_, bytes);
    auto reader = TokenShardReader::open(path_);
    const Status status = reader.ok() ? (*reader)->verify() : reader.status();
    ASSERT_EQ(status.code(), Code::kDataLoss) << "byte " << at << " " << status.to_string();
  }
}

TEST_F(DamagedShard, ACutFileIsRefusedAtOpen) {
  for (const int64_t less : {int64_t{1}, int64_t{8}, int64_t{2000000}}) {
    test::cut_file(path_, less);
    const Status status = TokenShardReader::open(path_).status();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("bytes"));
  }
  test::set_bytes(path_, "SWAXTOK1");
  EXPECT_EQ(TokenShardReader::open(path_).status().code(), Code::kDataLoss);
  test::set_bytes(path_, "");
  EXPECT_EQ(TokenShardReader::open(path_).status().code(), Code::kDataLoss);
}

TEST_F(DamagedShard, AFileCutWhileOpenIsAnErrorAndNoSignal) {
  auto reader = TokenShardReader::open(path_);
  ASSERT_TRUE(reader.ok());
  test::cut_file(path_, 3000000);
  std::vector<int32_t> out(100);
  EXPECT_EQ((*reader)->read(3 * kTokenBlockBytes / 2 - 100, out).code(), Code::kDataLoss);
}

TEST_F(DamagedShard, AnotherVersionIsNamed) {
  std::string bytes = test::bytes_of(path_);
  put_le<uint32_t>(bytes.data() + kAtVersion, 2);
  test::set_bytes(path_, bytes);
  const Status status = TokenShardReader::open(path_).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("version=2"));
}

TEST_F(DamagedShard, ACountThatDoesNotFitIsRefusedEvenWithARightDigest) {
  std::string bytes = test::bytes_of(path_);
  put_le<uint64_t>(bytes.data() + kAtTokens, uint64_t{1} << 47);
  put_hash(bytes.data() + kTokenHeaderBytes - kHashBytes,
           xxh3_128(bytes.data(), kTokenHeaderBytes - kHashBytes));
  test::set_bytes(path_, bytes);
  EXPECT_EQ(TokenShardReader::open(path_).status().code(), Code::kDataLoss);
}

TEST_F(DamagedShard, AMissingFileIsNotFound) {
  EXPECT_EQ(TokenShardReader::open(path_ + "x").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace swax
