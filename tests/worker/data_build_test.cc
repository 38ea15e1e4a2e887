// Goal: the same documents give one digest, whoever builds them and whatever happens to other
// builders. Method: fixtures in all containers; builders as child processes that race, are killed
// at each failpoint, or may not write.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "proto/base/files.h"
#include "storage/shard_catalog.h"
#include "tests/worker/data_fixture.h"
#include "worker/data/build.h"
#include "worker/data/split_writer.h"

namespace swax {
namespace {

using test::BuildProcess;
using test::fixture;
using test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kMiBytes = 1024 * 1024;

BuildOptions options_for(std::vector<std::string> inputs) {
  BuildOptions options;
  options.name = "sample";
  options.inputs = std::move(inputs);
  options.validation_fraction = 0.4;
  return options;
}

pb::DatasetManifest build(const BuildOptions& options, const TempFolder& folder) {
  Result<pb::DatasetManifest> built = build_dataset(options, folder.file("data"));
  EXPECT_TRUE(built.ok()) << built.status().to_string();
  return built.ok() ? *built : pb::DatasetManifest();
}

std::vector<std::string> entries(const TempFolder& folder) {
  Result<std::vector<std::string>> names = list_dir(folder.file("data"));
  EXPECT_TRUE(names.ok()) << names.status().to_string();
  return names.ok() ? *names : std::vector<std::string>();
}

// The documents of a split, read back from its shards.
std::vector<std::string> stored_documents(const std::string& dataset, const char* split) {
  const auto reader = DatasetReader::open(dataset, split, "");
  EXPECT_TRUE(reader.ok()) << reader.status().to_string();
  std::vector<int32_t> tokens((*reader)->tokens());
  std::vector<uint8_t> starts(tokens.size());
  EXPECT_TRUE((*reader)->read(0, tokens).ok());
  EXPECT_TRUE((*reader)->document_starts(0, starts).ok());
  std::vector<std::string> documents;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (starts[i] != 0) documents.emplace_back();
    const bool last = i + 1 == tokens.size() || starts[i + 1] != 0;
    EXPECT_EQ(tokens[i] == static_cast<int32_t>(kEodToken), last) << i;
    if (!last) documents.back() += static_cast<char>(tokens[i]);
  }
  return documents;
}

TEST(Build, OneDigestForEveryContainerAndCutIntoFiles) {
  const TempFolder folder;
  const pb::DatasetManifest first = build(options_for({fixture("sample.txt")}), folder);
  for (const char* name :
       {"sample_crlf.txt", "sample.jsonl", "sample.txt.gz", "sample.jsonl.gz",
        "sample_members.txt.gz", "sample.jsonl.zst", "sample_frames.jsonl.zst"}) {
    EXPECT_EQ(build(options_for({fixture(name)}), folder).digest(), first.digest()) << name;
  }
  const std::string text = test::contents(fixture("sample.txt"));
  const size_t border = text.find("\n\n  leading");
  const std::vector<std::string> halves = {folder.write("1.txt", text.substr(0, border)),
                                           folder.write("2.txt", text.substr(border))};
  EXPECT_EQ(build(options_for(halves), folder).digest(), first.digest());
  EXPECT_THAT(entries(folder), ElementsAre(".build.lock", first.digest()));
}

TEST(Build, DigestFollowsWhatMatters) {
  const TempFolder folder;
  std::set<std::string> digests;
  BuildOptions options = options_for({fixture("sample.txt")});
  digests.insert(build(options, folder).digest());
  options.name = "other";
  digests.insert(build(options, folder).digest());
  options.documents = "line";
  digests.insert(build(options, folder).digest());
  options.validation_fraction = 0.0;
  digests.insert(build(options, folder).digest());
  options.license = "CC0-1.0";
  digests.insert(build(options, folder).digest());
  const std::string text = test::contents(fixture("sample.txt"));
  options.inputs = {folder.write("a.txt", text + "!")};
  digests.insert(build(options, folder).digest());
  EXPECT_EQ(digests.size(), 6U);
  EXPECT_EQ(digests.count(""), 0U);
}

// A change of this digest means that data sets of running jobs would not be found again.
TEST(Build, GoldenDigest) {
  const TempFolder folder;
  EXPECT_EQ(build(options_for({fixture("sample.txt")}), folder).digest(),
            "785ef1797d5ca1f1f9e503216706c7af");
}

TEST(Build, StoresTheDocumentsAndVerifies) {
  const TempFolder folder;
  int64_t progress = 0;
  BuildOptions options = options_for({fixture("sample.txt"), fixture("sample.jsonl")});
  options.progress = [&](int64_t bytes) {
    EXPECT_GE(bytes, progress);
    progress = bytes;
  };
  const pb::DatasetManifest m = build(options, folder);
  EXPECT_EQ(progress, static_cast<int64_t>(test::contents(fixture("sample.txt")).size() +
                                           test::contents(fixture("sample.jsonl")).size()));
  const std::string dataset = join_path(folder.file("data"), m.digest());
  ASSERT_TRUE(verify_dataset(dataset).ok());
  const std::vector<std::string> train = stored_documents(dataset, "train");
  const std::vector<std::string> held = stored_documents(dataset, "validation");
  EXPECT_EQ(train.size() + held.size(), 10U);
  // The documents come twice: copies stay together.
  for (const std::string& document : train) {
    EXPECT_EQ(std::count(train.begin(), train.end(), document), 2);
    EXPECT_EQ(std::count(held.begin(), held.end(), document), 0);
  }
  uint64_t text_bytes = 0;
  for (const auto& list : {train, held}) {
    for (const std::string& document : list) text_bytes += document.size();
  }
  ASSERT_EQ(m.splits_size(), 2);
  EXPECT_EQ(m.splits(0).text_bytes() + m.splits(1).text_bytes(), text_bytes);
  EXPECT_EQ(m.splits(0).tokens(), m.splits(0).text_bytes() + m.splits(0).documents());
  EXPECT_EQ(m.parents(0).bytes(), text_bytes);
}

TEST(Build, FirstDocumentIsNeverHeldOut) {
  const TempFolder folder;
  BuildOptions options = options_for({folder.write("a.txt", "one\n\ntwo\n\none\n\nthree")});
  options.validation_fraction = 1.0 - 1.0 / 9007199254740992.0;  // everything that may be
  const pb::DatasetManifest m = build(options, folder);
  const std::string dataset = join_path(folder.file("data"), m.digest());
  EXPECT_THAT(stored_documents(dataset, "train"), ElementsAre("one", "one"));
  EXPECT_THAT(stored_documents(dataset, "validation"), ElementsAre("two", "three"));
  options.validation_fraction = 0.0;
  const pb::DatasetManifest all = build(options, folder);
  EXPECT_EQ(all.splits(0).documents(), 4U);
  EXPECT_EQ(all.splits(1).documents(), 0U);
}

TEST(SplitWriter, HoldsOutBelowTheScaledFraction) {
  const uint64_t half = uint64_t{1} << 63;
  EXPECT_TRUE(held_out({0, half - 1}, 0.5));
  EXPECT_FALSE(held_out({0, half}, 0.5));
  EXPECT_FALSE(held_out({0, 0}, 0.0));
  EXPECT_TRUE(held_out({~uint64_t{0}, 0}, 1e-15));
}

TEST(SplitWriter, SkipsAndCountsEmptyDocuments) {
  const TempFolder folder;
  SplitWriter writer({folder.path(), "x", 0.0, 1 << 20});
  for (const char* text : {"", "a", "", "", "b"}) {
    ASSERT_TRUE(writer.text(text).ok());
    ASSERT_TRUE(writer.end_document().ok());
  }
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_EQ(writer.empty_documents(), 3);
  EXPECT_EQ(writer.train().split().documents(), 2U);
}

TEST(Build, ShardsStayBelowTheLimitAndDocumentsWhole) {
  const TempFolder folder;
  std::vector<std::string> documents;
  std::string lines;
  for (uint64_t i = 0; i < 60; ++i) {
    documents.push_back(test::random_document(3, i, i == 30 ? 200'000 : 1000 + 300 * i));
    lines += documents.back() + "\n";
  }
  BuildOptions options = options_for({folder.write("a.txt", lines)});
  options.documents = "line";
  options.validation_fraction = 0.0;
  options.shard_bytes_max = 100'000;
  const pb::DatasetManifest m = build(options, folder);
  ASSERT_GT(m.shards_size(), 5);
  int above = 0;
  for (const pb::ShardInfo& shard : m.shards()) {
    if (shard.bytes() <= 100'000U) continue;
    ++above;
    EXPECT_EQ(shard.documents(), 1U);
  }
  EXPECT_EQ(above, 1);  // the long one, alone
  const std::string dataset = join_path(folder.file("data"), m.digest());
  EXPECT_EQ(stored_documents(dataset, "train"), documents);
  EXPECT_TRUE(verify_dataset(dataset).ok());
}

TEST(Build, RefusesBadOptionsAndEmptyInput) {
  const TempFolder folder;
  const auto code = [&](auto change) {
    BuildOptions options = options_for({fixture("sample.txt")});
    change(options);
    return build_dataset(options, folder.file("data")).status().code();
  };
  EXPECT_EQ(code([](BuildOptions& o) { o.name = ""; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](BuildOptions& o) { o.inputs = {}; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](BuildOptions& o) { o.validation_fraction = 1.0; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](BuildOptions& o) { o.validation_fraction = -0.1; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](BuildOptions& o) { o.validation_fraction = 0.0 / 0.0; }),
            Code::kInvalidArgument);
  EXPECT_EQ(code([](BuildOptions& o) { o.shard_bytes_max = 1; }), Code::kInvalidArgument);
  EXPECT_EQ(code([&](BuildOptions& o) { o.inputs = {folder.write("empty.txt", "\n\n")}; }),
            Code::kNotFound);
  EXPECT_EQ(code([&](BuildOptions& o) { o.inputs.push_back("/no/such/file"); }), Code::kNotFound);
  EXPECT_THAT(entries(folder), ElementsAre(".build.lock"));
}

TEST(Build, OptionsForTheTextOfASpec) {
  const Result<BuildOptions> file = build_options_for_text("x", "file:a/b.txt");
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(file->inputs, ElementsAre("a/b.txt"));
  EXPECT_EQ(file->name, "x");
  const Result<BuildOptions> kjv = build_options_for_text("x", "debian:kjv");
  ASSERT_TRUE(kjv.ok());
  EXPECT_THAT(kjv->inputs, ElementsAre("debian:kjv"));
  EXPECT_THAT(kjv->license, HasSubstr("public domain"));
  for (const char* bad : {"", "file:", "kjv", "debian:other", "http://x"}) {
    EXPECT_EQ(build_options_for_text("x", bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST(Build, ManyBuildersAtOnceGiveOneDataset) {
  const TempFolder folder;
  std::string lines;
  for (uint64_t i = 0; i < 200; ++i) lines += test::random_document(4, i, 5000) + "\n";
  const std::string input = folder.write("a.txt", lines);
  std::vector<BuildProcess> builders;
  for (int i = 0; i < 4; ++i) {
    builders.emplace_back(std::vector<std::string>{folder.file("data"), "x", "line", "0", input});
  }
  std::set<std::string> digests;
  for (BuildProcess& builder : builders) {
    const BuildProcess::Ended ended = builder.wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.output;
    digests.insert(ended.digest());
  }
  ASSERT_EQ(digests.size(), 1U);
  EXPECT_THAT(entries(folder), ElementsAre(".build.lock", *digests.begin()));
  EXPECT_TRUE(verify_dataset(join_path(folder.file("data"), *digests.begin())).ok());
}

TEST(Build, KilledBuilderLeavesOnlyWhatTheNextOneSweeps) {
  const TempFolder reference;
  const std::string digest = build(options_for({fixture("sample.txt")}), reference).digest();
  for (const char* point :
       {"dataset.shards_written", "dataset.manifest_written", "dataset.renamed"}) {
    const TempFolder folder;
    BuildProcess builder({folder.file("data"), "sample", "auto", "0", fixture("sample.txt")},
                         {std::string("SWAX_FAILPOINTS=") + point + ":1"});
    const BuildProcess::Ended ended = builder.wait();
    ASSERT_EQ(ended.signal, SIGKILL) << point << ": " << ended.output;
    const std::vector<std::string> left = entries(folder);
    ASSERT_EQ(left.size(), 2U);
    const bool renamed = std::string_view(point) == "dataset.renamed";
    EXPECT_EQ(left[1].starts_with(".building-"), !renamed) << left[1];
    EXPECT_EQ(build(options_for({fixture("sample.txt")}), folder).digest(), digest);
    const std::vector<std::string> after = entries(folder);
    EXPECT_EQ(std::count(after.begin(), after.end(), digest), 1);
    for (const std::string& name : after) EXPECT_FALSE(name.starts_with(".building-")) << name;
  }
}

TEST(Build, FullDiskIsSaidAndLeavesNothing) {
  const TempFolder folder;
  const std::string input = folder.write("a.txt", test::random_document(5, 0, 3'000'000));
  BuildProcess builder({folder.file("data"), "x", "auto", "2000000", input});
  const BuildProcess::Ended ended = builder.wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.output, HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(entries(folder), ElementsAre(".build.lock"));
}

// A line far longer than the memory that may be used for it: NUL bytes of a sparse file.
TEST(Build, LongLineInBoundedMemory) {
  const TempFolder folder;
  // In a sanitizer build only long enough to go through the spool file.
  const int64_t bytes = (test::sanitized() ? 8 : test::full_form() ? 1024 : 64) * kMiBytes;
  const std::string input = folder.write("long.txt", "");
  ASSERT_EQ(truncate(input.c_str(), bytes), 0);
  for (const char* rule : {"auto", "line"}) {
    BuildProcess builder({folder.file("data"), "x", rule, "0", input});
    const BuildProcess::Ended ended = builder.wait();
    ASSERT_EQ(ended.exit_code, 0) << ended.output;
    const auto m = read_dataset_manifest(join_path(folder.file("data"), ended.digest()));
    ASSERT_TRUE(m.ok()) << m.status().to_string();
    EXPECT_EQ(m->splits(0).tokens(), static_cast<uint64_t>(bytes) + 1);
    // Program and libraries take 25 MiB, the document's share in memory 4 MiB, a block of tokens 1
    // MiB.
    if (!test::sanitized()) {
      EXPECT_LT(ended.rss_bytes_max, 48 * kMiBytes) << rule;
    }
    if (!test::full_form()) break;
  }
}

TEST(Build, ExistingDatasetIsLeftAlone) {
  const TempFolder folder;
  const pb::DatasetManifest first = build(options_for({fixture("sample.txt")}), folder);
  const pb::DatasetManifest second = build(options_for({fixture("sample.jsonl")}), folder);
  EXPECT_EQ(second.created_ms(), first.created_ms());
  EXPECT_EQ(second.parents(0).path(), fixture("sample.txt"));
}

}  // namespace
}  // namespace swax
