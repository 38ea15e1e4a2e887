// Goal: RocksKv and MemKv keep the contract of kv.h; RocksKv also survives closing, locks out a
// second writer, serves readers beside the writer and says so when the disk is full.
// Method: one parametrised suite for both; the rest on real folders and a tiny tmpfs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "storage/mem_kv.h"
#include "storage/rocks_kv.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

using test::TempDir;
using testing::ElementsAre;

std::unique_ptr<Kv> open_kv(const std::string& folder, KvMode mode) {
  auto kv = open_rocks_kv(folder, mode);
  EXPECT_TRUE(kv.ok()) << kv.status().to_string();
  return kv.ok() ? std::move(*kv) : nullptr;
}

std::vector<std::string> keys_of(Kv& kv, std::string_view prefix, std::string_view from = {},
                                 size_t limit = 1000) {
  std::vector<std::string> keys;
  const Status status = kv.scan(prefix, from, [&](std::string_view key, std::string_view) {
    keys.emplace_back(key);
    return keys.size() < limit;
  });
  EXPECT_TRUE(status.ok()) << status.to_string();
  return keys;
}

class KvContract : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "mem") {
      kv_ = std::make_unique<MemKv>();
    } else {
      kv_ = open_kv(dir_ / "db", KvMode::kCreate);
    }
    ASSERT_NE(kv_, nullptr);
  }
  const TempDir dir_;
  std::unique_ptr<Kv> kv_;
};
INSTANTIATE_TEST_SUITE_P(Each, KvContract, testing::Values("mem", "rocks"),
                         [](const auto& param) { return param.param; });

TEST_P(KvContract, GetsWhatWasWrittenLast) {
  EXPECT_EQ(kv_->get("a").status().code(), Code::kNotFound);
  ASSERT_TRUE(kv_->write({{"a", "1"}, {"b", "2"}}, true).ok());
  EXPECT_EQ(*kv_->get("a"), "1");
  ASSERT_TRUE(kv_->write({{"a", "3"}, {"b", std::nullopt}, {"never", std::nullopt}}, false).ok());
  EXPECT_EQ(*kv_->get("a"), "3");
  EXPECT_EQ(kv_->get("b").status().code(), Code::kNotFound);
}

TEST_P(KvContract, TheLastWriteOfABatchWins) {
  ASSERT_TRUE(kv_->write({{"a", "1"}, {"a", std::nullopt}, {"a", "2"}}, false).ok());
  EXPECT_EQ(*kv_->get("a"), "2");
  ASSERT_TRUE(kv_->write({{"a", "3"}, {"a", std::nullopt}}, false).ok());
  EXPECT_EQ(kv_->get("a").status().code(), Code::kNotFound);
}

TEST_P(KvContract, KeysAndValuesAreBytes) {
  const std::string key("\0\xff\n", 3);
  const std::string value("\0\0x\xfe", 4);
  ASSERT_TRUE(kv_->write({{key, value}, {"empty", ""}}, false).ok());
  EXPECT_EQ(*kv_->get(key), value);
  EXPECT_EQ(*kv_->get("empty"), "");
}

TEST_P(KvContract, ScansThePrefixInUnsignedOrderFromAKey) {
  const std::string high = "p\xff";
  ASSERT_TRUE(
      kv_->write({{"p2", ""}, {"p1", ""}, {high, ""}, {"o", ""}, {"q", ""}, {"p", ""}}, false)
          .ok());
  EXPECT_THAT(keys_of(*kv_, "p"), ElementsAre("p", "p1", "p2", high));
  EXPECT_THAT(keys_of(*kv_, "p", "p11"), ElementsAre("p2", high));
  EXPECT_THAT(keys_of(*kv_, "p", "a"), ElementsAre("p", "p1", "p2", high));
  EXPECT_THAT(keys_of(*kv_, "p", "q"), ElementsAre());
  EXPECT_THAT(keys_of(*kv_, "p", {}, 2), ElementsAre("p", "p1"));
  EXPECT_THAT(keys_of(*kv_, ""), ElementsAre("o", "p", "p1", "p2", high, "q"));
  EXPECT_THAT(keys_of(*kv_, high), ElementsAre(high));
  EXPECT_THAT(keys_of(*kv_, "x"), ElementsAre());
}

TEST_P(KvContract, AScanSeesOneStateAndMayWrite) {
  ASSERT_TRUE(kv_->write({{"a", "1"}, {"b", "1"}, {"c", "1"}}, false).ok());
  std::string seen;
  ASSERT_TRUE(
      kv_->scan(
             "", "",
             [&](std::string_view key, std::string_view value) {
               seen += std::string(key) + std::string(value);
               EXPECT_TRUE(kv_->write({{"b", "2"}, {"c", std::nullopt}, {"d", "2"}}, false).ok());
               return true;
             })
          .ok());
  EXPECT_EQ(seen, "a1b1c1");
  EXPECT_THAT(keys_of(*kv_, ""), ElementsAre("a", "b", "d"));
}

TEST_P(KvContract, ValuesUpTo64MiB) {
  const std::string large(static_cast<size_t>(64 * kMiB), 'v');
  ASSERT_TRUE(kv_->write({{"large", large}}, false).ok());
  EXPECT_TRUE(*kv_->get("large") == large);
  const Status status = kv_->write({{"small", "1"}, {"large", large + "v"}}, false);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(kv_->get("small").status().code(), Code::kNotFound) << "all or nothing";
}

TEST_P(KvContract, SerialisesThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string name = std::to_string(t) + "." + std::to_string(i);
        EXPECT_TRUE(kv_->write({{"x" + name, name}, {"y" + name, name}}, false).ok());
        EXPECT_EQ(*kv_->get("x" + name), name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(keys_of(*kv_, "x").size(), 200U);
  EXPECT_EQ(keys_of(*kv_, "y").size(), 200U);
}

TEST(MemKv, CountsSyncs) {
  MemKv kv;
  ASSERT_TRUE(kv.write({{"a", "1"}}, true).ok());
  ASSERT_TRUE(kv.write({{"a", "2"}}, false).ok());
  EXPECT_EQ(kv.syncs(), 1);
}

TEST(RocksKv, ModesOfOpening) {
  const TempDir dir;
  EXPECT_EQ(open_rocks_kv(dir / "no", KvMode::kOpen).status().code(), Code::kNotFound);
  EXPECT_EQ(open_rocks_kv(dir / "no", KvMode::kReadOnly).status().code(), Code::kNotFound);
  EXPECT_FALSE(path_exists(dir / "no"));
  {
    const auto kv = open_kv(dir / "deep/db", KvMode::kCreate);
    ASSERT_TRUE(kv->write({{"a", "1"}}, false).ok());
    EXPECT_EQ(open_rocks_kv(dir / "deep/db", KvMode::kOpen).status().code(), Code::kUnavailable);
  }
  EXPECT_EQ(*open_kv(dir / "deep/db", KvMode::kCreate)->get("a"), "1") << "create opens, too";
  EXPECT_EQ(*open_kv(dir / "deep/db", KvMode::kOpen)->get("a"), "1");
}

TEST(RocksKv, ReadsBesideAWriterAndChangesNothing) {
  const TempDir dir;
  const auto writer = open_kv(dir / "db", KvMode::kCreate);
  ASSERT_TRUE(writer->write({{"a", "1"}}, true).ok());
  const auto before = test::tree_of(dir.path());
  {
    const auto reader = open_kv(dir / "db", KvMode::kReadOnly);
    EXPECT_EQ(*reader->get("a"), "1");
    EXPECT_EQ(reader->write({{"a", "2"}}, true).code(), Code::kFailedPrecondition);
    EXPECT_THAT(keys_of(*reader, ""), ElementsAre("a"));
    ASSERT_TRUE(writer->write({{"b", "1"}}, true).ok());
    EXPECT_EQ(reader->get("b").status().code(), Code::kNotFound) << "a reader sees its opening";
  }
  EXPECT_EQ(*open_kv(dir / "db", KvMode::kReadOnly)->get("b"), "1");
  ASSERT_TRUE(writer->write({{"b", std::nullopt}}, true).ok());
  auto after = test::tree_of(dir.path());
  for (auto& [name, bytes] : after) {
    ASSERT_TRUE(before.contains(name)) << name << " was made by a reader";
    if (!name.ends_with(".log")) {  // the writer's, which grows
      EXPECT_EQ(bytes, before.at(name)) << name;
    }
  }
}

TEST(RocksKv, ReadersNeverFailWhileTheWriterReplacesFiles) {
  const TempDir dir;
  { open_kv(dir / "db", KvMode::kCreate); }
  std::thread writing([&] {
    for (int round = 0; round < 8; ++round) {
      const auto kv = open_kv(dir / "db", KvMode::kOpen);  // each open makes a new MANIFEST
      for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(kv->write({{"k" + std::to_string(i), std::string(100000, 'v')}}, false).ok());
      }
    }
  });
  for (int i = 0; i < 40; ++i) {
    const auto reader = open_rocks_kv(dir / "db", KvMode::kReadOnly);
    EXPECT_TRUE(reader.ok()) << reader.status().to_string();
  }
  writing.join();
}

TEST(RocksKv, DamageIsDataLoss) {
  const TempDir dir;
  for (int i = 0; i < 2; ++i) {  // the second opening writes the first one's log to an SST
    const auto kv = open_kv(dir / "db", KvMode::kCreate);
    ASSERT_TRUE(kv->write({{"a" + std::to_string(i), std::string(100000, 'v')}}, true).ok());
  }
  const std::vector<std::string> tables = test::files_like(dir.path(), "0", ".sst");
  ASSERT_EQ(tables.size(), 1U);
  test::flip_bit(tables[0], 50000);
  const auto kv = open_kv(dir / "db", KvMode::kReadOnly);
  EXPECT_EQ(kv->get("a0").status().code(), Code::kDataLoss);
  EXPECT_EQ(kv->scan("a0", "", [](auto, auto) { return true; }).code(), Code::kDataLoss);
  ASSERT_EQ(unlink(tables[0].c_str()), 0);
  EXPECT_EQ(open_rocks_kv(dir / "db", KvMode::kReadOnly).status().code(), Code::kDataLoss);
}

TEST(RocksKv, AFullDiskRefusesTheWholeBatchAndRecovers) {
  const TempDir dir;
  const test::TinyDisk disk(dir / "disk", "size=8m");
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount";
  {
    const auto kv = open_kv(dir / "disk/db", KvMode::kCreate);
    ASSERT_TRUE(kv->write({{"first", "1"}}, true).ok());
    test::fill_disk(dir / "disk", "filler");
    const std::string value(200000, 'v');
    const Status full = kv->write({{"a", value}, {"b", value}}, true);
    EXPECT_EQ(full.code(), Code::kResourceExhausted) << full.to_string();
    EXPECT_EQ(kv->get("a").status().code(), Code::kNotFound);
    EXPECT_EQ(*kv->get("first"), "1");
    EXPECT_EQ(kv->write({{"c", value}}, true).code(), Code::kResourceExhausted);
    ASSERT_EQ(unlink((dir / "disk/filler").c_str()), 0);
    const Status again = kv->write({{"later", "2"}}, true);
    ASSERT_TRUE(again.ok()) << again.to_string();
  }
  const auto kv = open_kv(dir / "disk/db", KvMode::kOpen);
  EXPECT_THAT(keys_of(*kv, ""), ElementsAre("first", "later")) << "nothing lost, nothing half";
}

}  // namespace
}  // namespace swax
