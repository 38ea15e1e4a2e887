// Goal: debian:kjv is the whole King James text, the same on every machine; the n-gram baseline on
// it is the known number. Method: builds it once with the real program; the digest and the counts
// are golden.
#include <gmock/gmock.h>

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

#include "proto/base/files.h"
#include "storage/shard_catalog.h"
#include "tests/worker/data_fixture.h"
#include "worker/data/baseline.h"
#include "worker/data/build.h"
#include "worker/data/import.h"

namespace swax {
namespace {

using testing::HasSubstr;

class Kjv : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!path_exists("/usr/bin/bible")) return;
    folder_ = std::make_unique<test::TempFolder>();
    BuildOptions options = *build_options_for_text("kjv", "debian:kjv");
    const Result<pb::DatasetManifest> built = build_dataset(options, folder_->path());
    ASSERT_TRUE(built.ok()) << built.status().to_string();
    manifest_ = *built;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override {
    if (folder_ == nullptr) GTEST_SKIP() << "/usr/bin/bible: apt-get install bible-kjv";
  }
  static std::string dataset() { return join_path(folder_->path(), manifest_.digest()); }

  static std::unique_ptr<test::TempFolder> folder_;
  static pb::DatasetManifest manifest_;
};
std::unique_ptr<test::TempFolder> Kjv::folder_;
pb::DatasetManifest Kjv::manifest_;

TEST_F(Kjv, HasEveryChapterAndByte) {
  const pb::SplitInfo& train = manifest_.splits(0);
  const pb::SplitInfo& held = manifest_.splits(1);
  EXPECT_EQ(train.documents() + held.documents(), 1189U);
  EXPECT_EQ(train.text_bytes() + held.text_bytes(), 4'136'661U);
  EXPECT_EQ(train.tokens() + held.tokens(), 4'137'850U);
  EXPECT_EQ(manifest_.digest(), "515bc0b0244ee853902111e7758c4fe3");
  std::printf("kjv: train documents=%llu bytes=%llu tokens=%llu, validation %llu %llu %llu\n",
              static_cast<unsigned long long>(train.documents()),
              static_cast<unsigned long long>(train.text_bytes()),
              static_cast<unsigned long long>(train.tokens()),
              static_cast<unsigned long long>(held.documents()),
              static_cast<unsigned long long>(held.text_bytes()),
              static_cast<unsigned long long>(held.tokens()));
}

TEST_F(Kjv, ChaptersReadAsText) {
  test::KeepingSink sink;
  ASSERT_TRUE(import_documents("debian:kjv", {}, sink).ok());
  ASSERT_EQ(sink.documents.size(), 1189U);
  EXPECT_TRUE(sink.documents.front().starts_with(
      "In the beginning God created the heaven and the earth.\nAnd the earth was without form"));
  EXPECT_TRUE(sink.documents.back().ends_with(
      "\nThe grace of our Lord Jesus Christ be with you all. Amen."));
  int64_t verses = 0;
  for (const std::string& chapter : sink.documents) {
    verses += std::count(chapter.begin(), chapter.end(), '\n') + 1;
    for (const char c : chapter)
      ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~' && !std::isdigit(c)));
  }
  EXPECT_EQ(verses, 31'102);
}

TEST_F(Kjv, SplitsAreDisjoint) {
  std::set<std::string> seen;
  for (const char* split : {"train", "validation"}) {
    const auto reader = DatasetReader::open(dataset(), split, "");
    ASSERT_TRUE(reader.ok());
    std::vector<int32_t> tokens((*reader)->tokens());
    ASSERT_TRUE((*reader)->read(0, tokens).ok());
    std::string chapter;
    for (const int32_t token : tokens) {
      if (token != static_cast<int32_t>(kEodToken)) {
        chapter += static_cast<char>(token);
        continue;
      }
      EXPECT_TRUE(seen.insert(chapter).second) << split << ": " << chapter.substr(0, 60);
      chapter.clear();
    }
  }
  EXPECT_EQ(seen.size(), 1189U);
}

TEST_F(Kjv, BaselineIsTheKnownNumber) {
  const auto results = ngram_baseline(dataset(), {1, 2, 3, 4, 5}, 256, true);
  ASSERT_TRUE(results.ok()) << results.status().to_string();
  for (const BaselineResult& r : *results) {
    std::printf("kjv: order %d: %.4f bits per byte over %lld targets, %lld bytes\n", r.order,
                r.bits_per_byte, static_cast<long long>(r.targets),
                static_cast<long long>(r.text_bytes));
  }
  // From an independent program in another language on the same split and targets. Sums of 227,268
  // doubles: relative rounding below 3e-11; the numbers are given to ten digits.
  const double expected[] = {4.3489078140, 3.2397698191, 2.4628159150, 1.9157916699, 1.6392238533};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR((*results)[i].bits_per_byte, expected[i], 3e-10);
}

TEST_F(Kjv, MissingProgramSaysHowToInstallIt) {
  const test::TempFolder empty;
  const std::string path = std::getenv("PATH");
  ASSERT_EQ(setenv("PATH", empty.path().c_str(), 1), 0);
  test::KeepingSink sink;
  const Status status = import_documents("debian:kjv", {}, sink);
  ASSERT_EQ(setenv("PATH", path.c_str(), 1), 0);
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("apt-get install"));
}

TEST_F(Kjv, ProgramThatFailsIsDataLoss) {
  const test::TempFolder folder;
  const std::string path = std::getenv("PATH");
  for (const char* body : {"#!/bin/sh\nexit 1\n", "#!/bin/sh\necho 'Ge1:1 In'\n",
                           "#!/bin/sh\nkill -9 $$\n", "#!/bin/sh\necho hello\nsleep 100\n"}) {
    const std::string program = folder.write("bible", body);
    ASSERT_EQ(chmod(program.c_str(), 0755), 0);
    ASSERT_EQ(setenv("PATH", folder.path().c_str(), 1), 0);
    test::KeepingSink sink;
    const Status status = import_documents("debian:kjv", {}, sink);
    ASSERT_EQ(setenv("PATH", path.c_str(), 1), 0);
    EXPECT_EQ(status.code(), Code::kDataLoss) << body << status.to_string();
  }
}

}  // namespace
}  // namespace swax
