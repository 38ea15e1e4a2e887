// Goal: bytes that are stored never change their meaning. A change here is a new format version.
// Method: the bytes of version 1 of a small example, worked out in storage/FORMAT.md.
#include <gtest/gtest.h>

#include "proto/base/hash.h"
#include "storage/byte_order.h"
#include "storage/checkpoint_layout.h"
#include "storage/container.h"
#include "storage/shard_catalog.h"
#include "storage/token_shard_format.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

TEST(FormatGolden, TokenShard) {
  const test::TempDir dir;
  TokenShardInfo info;
  info.vocab_size = 257;
  info.eod_token = 256;
  info.tokenizer_digest = {0x0011223344556677, 0x8899aabbccddeeff};
  info.name = "hi";
  auto writer = TokenShardWriter::create(dir / "a.swt", info);
  ASSERT_TRUE(writer.ok());
  for (const auto& document : {std::vector<uint32_t>{104, 105, 256}, {33, 256}}) {
    ASSERT_TRUE((*writer)->append(document).ok());
    (*writer)->end_document();
  }
  const auto finished = (*writer)->finish();
  ASSERT_TRUE(finished.ok());
  const std::string bytes = test::bytes_of(dir / "a.swt");
  ASSERT_EQ(bytes.size(), 4136U);
  EXPECT_EQ(test::hex_of(bytes.substr(0, 80)),
            "53574158544f4b310100000000100000020300000101000000010000000010000500000000000000"
            "02000000000000000010000000000000101000000000000020100000000000002810000000000000");
  EXPECT_EQ(test::hex_of(bytes.substr(80, 52)),
            "00112233445566778899aabbccddeeff00000000000000000000000000000000c024c897a9941640"
            "ff893e8ada21d53b68690000");
  EXPECT_EQ(bytes.substr(132, 4080 - 132), std::string(4080 - 132, '\0'));
  EXPECT_EQ(test::hex_of(bytes.substr(4080, 16)), "70a70145c8cc0c5eb83e311a3ee0462c");
  EXPECT_EQ(test::hex_of(bytes.substr(4096)),
            "6800690000012100000100000000000003000000000000000500000000000000bc66c2494a6a4bc2");
  EXPECT_EQ(finished->file_hash.hex(), "98a5b446834c3089c64b2cdf0b58017d");
}

pb::ShardManifest example_shard() {
  pb::ShardManifest shard;
  pb::CheckpointChunk* const chunk = shard.add_chunks();
  chunk->set_tensor_id(1);
  chunk->set_begin(2);
  chunk->set_count(3);
  chunk->set_xxh3_high(4);
  chunk->set_xxh3_low(5);
  return shard;
}

TEST(FormatGolden, CommittedContainer) {
  pb::CheckpointManifest manifest;
  manifest.set_format_version(1);
  manifest.set_job("kjv");
  manifest.set_step(12000);
  manifest.set_epoch(1);
  manifest.set_world_size(1);
  const std::string bytes = encode_container(kCommittedKind, manifest.SerializeAsString());
  EXPECT_EQ(test::hex_of(bytes),
            "53574158434b505401000000000000000e00000000000000080112036b6a7618e05d20012801da85"
            "cade19c39ad9bf5d0e5d673e2b99");
  const auto payload = decode_container(kCommittedKind, bytes);
  ASSERT_TRUE(payload.ok());
  EXPECT_EQ(*payload, manifest.SerializeAsString());
}

TEST(FormatGolden, ChunkTableRoot) {
  EXPECT_EQ(chunk_table_root(example_shard()).hex(), "6978de39248e2f47f77157457a5ab2bb");
  EXPECT_EQ(chunk_table_root({}).hex(), "99aa06d3014798d86001c324468d497f")
      << "XXH3-128 of nothing";
}

TEST(FormatGolden, DatasetDigest) {
  pb::DatasetManifest manifest;
  manifest.set_format_version(1);
  manifest.set_name("kjv");
  manifest.set_validation_fraction(0.05);
  pb::ShardInfo* const shard = manifest.add_shards();
  shard->set_file("train-00000.swt");
  shard->set_tokens(5);
  EXPECT_EQ(dataset_digest(manifest).hex(), "27b526d81aa0709fc7fb6a193595c164");
}

}  // namespace
}  // namespace swax
