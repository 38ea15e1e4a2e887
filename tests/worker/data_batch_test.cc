// Goal: a slot's tokens are a function of (spec, step, slot) alone, with the borders of documents
// in the right places. Method: small data sets whose whole split is read back; every slot is
// compared with one computed from jobs/data_order.
#include <gmock/gmock.h>

#include <cstdint>
#include <cstdio>
#include <map>

#include "jobs/data_order.h"
#include "proto/base/files.h"
#include "proto/base/rng.h"
#include "storage/shard_catalog.h"
#include "tests/worker/data_allocations.h"
#include "tests/worker/data_fixture.h"
#include "worker/data/batch_source.h"
#include "worker/data/build.h"

namespace swax {
namespace {

using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Split {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> starts;
};

Split read_split(const std::string& folder, const char* name) {
  const auto reader = DatasetReader::open(folder, name, "");
  EXPECT_TRUE(reader.ok()) << reader.status().to_string();
  Split split;
  split.tokens.resize((*reader)->tokens());
  split.starts.resize(split.tokens.size());
  EXPECT_TRUE((*reader)->read(0, split.tokens).ok());
  EXPECT_TRUE((*reader)->document_starts(0, split.starts).ok());
  return split;
}

// The definition, token by token.
SlotBatch expected_slot(const Split& split, int64_t slot, int64_t window, size_t length,
                        bool reset) {
  SlotBatch batch;
  batch.slot = slot;
  const size_t begin = static_cast<size_t>(window) * length;
  for (size_t t = 0; t < length; ++t) {
    const size_t at = begin + t;
    batch.tokens_T.push_back(split.tokens[at]);
    const bool ignored = reset && split.starts[at + 1] != 0;
    batch.targets_T.push_back(ignored ? -1 : split.tokens[at + 1]);
    batch.targets += ignored ? 0 : 1;
    batch.text_bytes += !ignored && split.tokens[at + 1] < 256 ? 1 : 0;
    if (!reset) continue;
    size_t document = at;
    while (document > begin && split.starts[document] == 0) --document;
    batch.doc_start_T.push_back(static_cast<int32_t>(document - begin));
    batch.reset_T.push_back(split.starts[at]);
  }
  return batch;
}

void expect_equal(const SlotBatch& got, const SlotBatch& want) {
  EXPECT_EQ(got.slot, want.slot);
  EXPECT_EQ(got.tokens_T, want.tokens_T);
  EXPECT_EQ(got.targets_T, want.targets_T);
  EXPECT_EQ(got.doc_start_T, want.doc_start_T);
  EXPECT_EQ(got.reset_T, want.reset_T);
  EXPECT_EQ(got.targets, want.targets);
  EXPECT_EQ(got.text_bytes, want.text_bytes);
}

struct World {
  TempFolder folder;
  pb::JobSpec spec;
  std::vector<std::string> folders;

  explicit World(uint32_t seq_len = 32, uint32_t batch = 7)
      : spec(test::data_spec(seq_len, batch)) {}
  void add(const std::string& name, uint64_t seed, uint64_t documents, double weight) {
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < documents; ++i) {
      const uint32_t draw = random_block(seed, Purpose::kTest, i, 1)[0];
      texts.push_back(test::random_document(seed, i, 1 + draw % 90));
    }
    const test::BuiltDataset built = test::build_documents(folder, name, texts, 0.2);
    pb::DataSource* source = spec.mutable_data()->add_sources();
    source->set_name(name);
    source->set_weight(weight);
    source->set_digest(built.digest);
    folders.push_back(built.folder);
  }
  std::unique_ptr<BatchSource> open(int rank = 0, int ranks = 1) const {
    auto source =
        BatchSource::open({.spec = &spec, .folders = folders, .rank = rank, .ranks = ranks});
    EXPECT_TRUE(source.ok()) << source.status().to_string();
    return source.ok() ? std::move(*source) : nullptr;
  }
  DataOrder order() const {
    std::vector<int64_t> tokens;
    for (const std::string& path : folders) {
      tokens.push_back(static_cast<int64_t>(read_split(path, "train").tokens.size()));
    }
    return *make_data_order(spec, tokens);
  }
};

TEST(BatchSource, SlotsFollowTheOrderForEveryNumberOfRanksAndOrderOfSteps) {
  World world;
  world.add("a", 1, 40, 1.0);
  world.add("b", 2, 25, 2.5);
  const DataOrder order = world.order();
  const std::vector<Split> splits = {read_split(world.folders[0], "train"),
                                     read_split(world.folders[1], "train")};
  for (const int ranks : {1, 2, 3, 9}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto source = world.open(rank, ranks);
      for (const int64_t step : {0, 1, 2, 3, 100, 101, 7, 7, 0, 1, 50'000}) {
        const auto slots = source->step(step);
        ASSERT_TRUE(slots.ok()) << slots.status().to_string();
        ASSERT_EQ((*slots)->size(), static_cast<size_t>((7 + ranks - 1) / ranks));
        for (size_t j = 0; j < (*slots)->size(); ++j) {
          const SlotBatch& got = (**slots)[j];
          const int64_t slot = static_cast<int64_t>(j) * ranks + rank;
          if (slot >= 7) {
            EXPECT_EQ(got.slot, kNoSlot);
            EXPECT_EQ(got.targets, 0);
            continue;
          }
          const SampleRef ref = order.at(static_cast<uint64_t>(step * 7 + slot));
          const Split& split = splits[static_cast<size_t>(ref.source)];
          expect_equal(got, expected_slot(split, slot, ref.window, 32, true));
        }
      }
    }
  }
}

TEST(BatchSource, WithoutDocResetNothingIsIgnored) {
  World world;
  world.add("a", 1, 40, 1.0);
  world.spec.mutable_model()->set_doc_reset(false);
  const auto source = world.open();
  const Split split = read_split(world.folders[0], "train");
  const DataOrder order = world.order();
  const auto slots = source->step(3);
  ASSERT_TRUE(slots.ok());
  for (const SlotBatch& got : **slots) {
    EXPECT_THAT(got.doc_start_T, IsEmpty());
    EXPECT_THAT(got.reset_T, IsEmpty());
    EXPECT_EQ(got.targets, 32);
    const int64_t window = order.at(static_cast<uint64_t>(21 + got.slot)).window;
    expect_equal(got, expected_slot(split, got.slot, window, 32, false));
  }
}

// Hand-made: "abc" "d" "efgh" as a b c E d E e f g h E, windows of four.
TEST(BatchSource, BordersByHand) {
  const TempFolder folder;
  const test::BuiltDataset built = test::build_documents(folder, "x", {"abc", "d", "efgh"}, 0.0);
  pb::JobSpec spec = test::data_spec(4, 2);
  spec.mutable_data()->set_shuffle("none");
  spec.mutable_data()->add_sources()->set_weight(1.0);
  auto source = BatchSource::open({.spec = &spec, .folders = {built.folder}});
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  const auto slots = (*source)->step(0);
  ASSERT_TRUE(slots.ok());
  const SlotBatch& first = (**slots)[0];
  EXPECT_THAT(first.tokens_T, ElementsAre('a', 'b', 'c', 256));
  EXPECT_THAT(first.targets_T, ElementsAre('b', 'c', 256, -1));
  EXPECT_THAT(first.doc_start_T, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(first.reset_T, ElementsAre(1, 0, 0, 0));
  EXPECT_EQ(first.targets, 3);
  EXPECT_EQ(first.text_bytes, 2);
  const SlotBatch& second = (**slots)[1];
  EXPECT_THAT(second.tokens_T, ElementsAre('d', 256, 'e', 'f'));
  EXPECT_THAT(second.targets_T, ElementsAre(256, -1, 'f', 'g'));
  EXPECT_THAT(second.doc_start_T, ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(second.reset_T, ElementsAre(1, 0, 1, 0));
  EXPECT_EQ(second.targets, 3);
  EXPECT_EQ(second.text_bytes, 2);
}

// Each source's windows come once an epoch, whatever the weights, also where the epochs of the
// sources differ.
TEST(BatchSource, EveryWindowOncePerEpoch) {
  World world(16, 5);
  world.add("a", 11, 30, 1.0);
  world.add("b", 12, 9, 0.3);
  const DataOrder order = world.order();
  const std::vector<Split> splits = {read_split(world.folders[0], "train"),
                                     read_split(world.folders[1], "train")};
  // Windows of random text differ, so that a batch names its window.
  std::map<std::vector<int32_t>, std::pair<size_t, int64_t>> names;
  for (size_t s = 0; s < 2; ++s) {
    for (int64_t w = 0; w < order.windows(static_cast<int>(s)); ++w) {
      const auto begin = splits[s].tokens.begin() + w * 16;
      ASSERT_TRUE(names.emplace(std::vector<int32_t>(begin, begin + 16), std::pair(s, w)).second);
    }
  }
  const auto source = world.open();
  std::vector<std::map<int64_t, int64_t>> seen(2);  // window -> times
  std::vector<int64_t> samples(2);
  for (int64_t step = 0; samples[0] < 3 * order.windows(0) || samples[1] < 3 * order.windows(1);
       ++step) {
    const auto slots = source->step(step);
    ASSERT_TRUE(slots.ok());
    for (const SlotBatch& slot : **slots) {
      const auto [s, window] = names.at(slot.tokens_T);
      const int64_t epoch = samples[s]++ / order.windows(static_cast<int>(s));
      EXPECT_EQ(seen[s][window]++, epoch) << "source " << s << " window " << window;
    }
  }
  // Shares: 1 : 0.3 within one sample of each period.
  const double share =
      static_cast<double>(samples[0]) / static_cast<double>(samples[0] + samples[1]);
  EXPECT_NEAR(share, 1.0 / 1.3, 1.0 / static_cast<double>(samples[0]));
}

TEST(BatchSource, ValidationWindowsOfAllSourcesInOrder) {
  World world;
  world.add("a", 1, 60, 1.0);
  world.add("b", 2, 50, 1.0);
  const auto source = world.open(1, 2);
  int64_t index = 0;
  SlotBatch got;
  for (const std::string& folder : world.folders) {
    const Split split = read_split(folder, "validation");
    const auto windows = static_cast<int64_t>((split.tokens.size() - 1) / 32);
    ASSERT_GT(windows, 1);
    for (int64_t w = 0; w < windows; ++w, ++index) {
      ASSERT_TRUE(source->validation(index, &got).ok());
      expect_equal(got, expected_slot(split, index, w, 32, true));
    }
  }
  EXPECT_EQ(source->validation_windows(), index);
  EXPECT_EQ(source->validation(index, &got).code(), Code::kInvalidArgument);
  EXPECT_EQ(source->validation(-1, &got).code(), Code::kInvalidArgument);
}

TEST(BatchSource, OwnerAllocatesNothingAfterTheThirdStep) {
  if (!test::counts_allocations()) GTEST_SKIP() << "a sanitizer counts its own way";
  World world;
  world.add("a", 1, 40, 1.0);
  const auto source = world.open();
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE(source->step(step).ok());
  const int64_t before = test::thread_allocations();
  bool fine = true;
  for (int64_t step = 3; step < 300; ++step) fine = source->step(step).ok() && fine;
  EXPECT_EQ(test::thread_allocations(), before);
  EXPECT_TRUE(fine);
  EXPECT_GT(before, 0);
}

TEST(BatchSource, RefusesWhatDoesNotFit) {
  World world;
  world.add("a", 1, 40, 1.0);
  const auto code = [&](auto change) {
    pb::JobSpec spec = world.spec;
    BatchSourceOptions options{.spec = &spec, .folders = world.folders};
    change(spec, options);
    const auto opened = BatchSource::open(options);
    return opened.status().code();
  };
  using Spec = pb::JobSpec;
  using Options = BatchSourceOptions;
  EXPECT_EQ(code([](Spec& s, Options&) { s.mutable_model()->set_vocab_size(256); }),
            Code::kInvalidArgument);
  EXPECT_EQ(code([](Spec& s, Options&) { s.mutable_training()->set_seq_len(100'000); }),
            Code::kInvalidArgument);
  EXPECT_EQ(code([](Spec&, Options& o) { o.folders.emplace_back("x"); }), Code::kInvalidArgument);
  EXPECT_EQ(code([](Spec&, Options& o) { o.rank = 1; }), Code::kInvalidArgument);
  EXPECT_NE(code([](Spec&, Options& o) { o.folders = {"/no/such"}; }), Code::kOk);
  EXPECT_EQ(code([](Spec& s, Options&) {
              s.mutable_data()->mutable_sources(0)->set_digest(std::string(32, '0'));
            }),
            Code::kFailedPrecondition);
  const auto source = world.open();
  EXPECT_EQ(source->step(-1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(source->step(INT64_MAX).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(source->step(0).ok());
}

TEST(BatchSource, FlippedBitIsDataLossNamingShardAndBlock) {
  World world(1024, 4);
  std::string line = test::random_document(13, 0, 3'000'000);  // 6 MB of tokens: several blocks
  const test::BuiltDataset built = test::build_documents(world.folder, "x", {line}, 0.0);
  world.folders = {built.folder};
  world.spec.mutable_data()->add_sources()->set_weight(1.0);
  const std::string shard = join_path(built.folder, "train-00000.swt");
  FILE* file = std::fopen(shard.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  std::fseek(file, 4096 + 2 * 1024 * 1024 + 77, SEEK_SET);  // block 2
  const int byte = std::fgetc(file);
  std::fseek(file, -1, SEEK_CUR);
  std::fputc(byte ^ 4, file);
  ASSERT_EQ(std::fclose(file), 0);

  const DataOrder order = *make_data_order(world.spec, {3'000'001});
  const auto source = world.open();
  int64_t bad_steps = 0;
  for (int64_t step = 0; step < 100; ++step) {
    bool touches = false;  // a window of 1025 tokens that meets [1 Mi, 1.5 Mi)
    for (uint64_t slot = 0; slot < 4; ++slot) {
      const int64_t begin = order.at(static_cast<uint64_t>(step) * 4 + slot).window * 1024;
      touches = touches || (begin + 1024 >= 1024 * 1024 && begin < 1536 * 1024);
    }
    const auto slots = source->step(step);
    ASSERT_EQ(slots.ok(), !touches) << step;
    if (slots.ok()) continue;
    ++bad_steps;
    EXPECT_EQ(slots.status().code(), Code::kDataLoss);
    EXPECT_THAT(slots.status().message(), HasSubstr("train-00000.swt"));
    EXPECT_THAT(slots.status().message(), HasSubstr("block 2"));
  }
  EXPECT_GT(bad_steps, 0);
  EXPECT_LT(bad_steps, 100);
}

}  // namespace
}  // namespace swax
