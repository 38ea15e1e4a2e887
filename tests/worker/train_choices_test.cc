// Goal: the forms of products are chosen once for a run. Method: CPU backends whose products have
// forms of their own: the choice of a rank would be its own (it depends on rank and day), and what
// every product ran with is kept. One choice serves all ranks and every later attempt, stands in
// the run's store before the first step, and a form that a machine does not have stops the run.
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <set>

#include "kernels/backend_wrapper.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "tests/worker/train_support.h"

namespace swax::test {
namespace {

const TrainData& data() {
  static const TrainData built;
  return built;
}

std::string shape_text(const GemmArgs& a) {
  return to_text(a.c.dims[0]) + "x" + to_text(a.c.dims[1]) + "x" +
         to_text(a.trans_a ? a.a.dims[0] : a.a.dims[1]) + (a.trans_a ? "t" : "n") +
         (a.trans_b ? "t" : "n") + (a.accumulate ? "+" : "=") +
         to_text(static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.c.data) % 64));
}

// What the ranks of one attempt ran.
struct Ran {
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> forms;  // by shape
  int chosen = 0;                                      // shapes that were chosen by time
};

// Its forms are names; "fast" ones that end on the rank and the day are what it would choose.
class FormsBackend final : public BackendWrapper {
 public:
  FormsBackend(Backend& inner, std::string mine, Ran& ran)
      : BackendWrapper(inner), mine_(std::move(mine)), ran_(ran) {}
  bool has_choices() const override { return true; }
  Result<std::string> choose(Stream&, std::span<const GemmArgs> products) override {
    std::map<std::string, std::string> chosen;
    for (const GemmArgs& a : products) chosen[shape_text(a)] = form(a);
    std::string out;
    for (const auto& [shape, name] : chosen) out += shape + ": " + name + "\n";
    return out;
  }
  Status adopt(std::string_view choices) override {
    for (const std::string_view line : split(choices, '\n')) {
      if (line.empty()) continue;
      const size_t colon = line.find(": ");
      if (colon == std::string_view::npos || !line.substr(colon).starts_with(": fast"))
        return failed_precondition(std::string(line) + ": no such form");
      forms_[std::string(line.substr(0, colon))] = line.substr(colon + 2);
    }
    return ok();
  }
  Status gemm(Stream& s, const GemmArgs& a) override {
    const std::string name = form(a);
    {
      std::lock_guard lock(ran_.mutex);
      ran_.forms[shape_text(a)].insert(name);
    }
    return BackendWrapper::gemm(s, a);
  }
  // As on a GPU: choosing takes memory.
  int64_t allocations() const override { return BackendWrapper::allocations() + chosen_; }

 private:
  std::string form(const GemmArgs& a) {
    const auto [at, added] = forms_.try_emplace(shape_text(a), mine_);
    if (added) {
      ++chosen_;
      std::lock_guard lock(ran_.mutex);
      ++ran_.chosen;
    }
    return at->second;
  }
  std::string mine_;
  Ran& ran_;
  int64_t chosen_ = 0;
  std::map<std::string, std::string> forms_;
};

struct Attempt {
  GroupRun run;
  std::unique_ptr<Ran> ran = std::make_unique<Ran>();
  std::string fingerprint;  // of rank 0
};

class TrainChoices : public testing::Test {
 protected:
  Attempt attempt(int ranks, const std::string& day, const Changes& changes = {},
                  int64_t until = 0) {
    Attempt out;
    GroupOptions options;
    options.ranks = ranks;
    options.epoch = ++epoch_;
    options.ckpt_root = folder_.file("ckpt");
    options.choices_file = file_;
    options.wrap = [&](int rank, Backend& inner) {
      return std::make_unique<FormsBackend>(inner, "fast-" + day + "-rank-" + std::to_string(rank),
                                            *out.ran);
    };
    options.created = [&](int rank, Trainer& trainer) {
      if (rank == 0) out.fingerprint = trainer.fingerprint();
      EXPECT_TRUE(std::filesystem::exists(file_));  // before any step
    };
    if (until > 0) options = stop_after(options, until);
    out.run = run_group(micro_spec(data(), changes), data(), options);
    return out;
  }
  TempFolder folder_;
  const std::string file_ = folder_.file("kernel-choices");
  uint64_t epoch_ = 0;
};

std::set<std::string> all_forms(const Attempt& attempt) {
  std::set<std::string> all;
  for (const auto& [shape, names] : attempt.ran->forms) all.insert(names.begin(), names.end());
  return all;
}

TEST_F(TrainChoices, EveryRankRunsThoseOfRank0) {
  const Attempt first = attempt(3, "monday");
  ASSERT_TRUE(first.run.agreed());
  EXPECT_GT(first.ran->forms.size(), 10U);
  EXPECT_EQ(all_forms(first), std::set<std::string>{"fast-monday-rank-0"});
  const std::vector<KeptEvent> said = first.run.first().events_of("kernel_choices");
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].text, contents(file_));
}

// Every product of steps and validations was found before the first of them.
TEST_F(TrainChoices, NothingIsChosenWhileTraining) {
  for (const Changes& changes : {Changes{}, Changes{{"activation_checkpoint.mode", "block"}},
                                 Changes{{"activation_checkpoint.mode", "light"},
                                         {"parallelism.fsdp_reshard_after_forward", "always"}}}) {
    const Attempt run = attempt(2, "monday", changes);
    ASSERT_TRUE(run.run.agreed());  // "device memory was taken" is an error of the trainer
    std::filesystem::remove(file_);
    std::filesystem::remove_all(folder_.file("ckpt"));
  }
}

TEST_F(TrainChoices, LaterAttemptsReplayThem) {
  const Attempt first = attempt(2, "monday", {}, 3);
  ASSERT_TRUE(first.run.agreed());
  const std::string kept = contents(file_);
  const Attempt second = attempt(1, "tuesday");
  ASSERT_TRUE(second.run.agreed());
  EXPECT_EQ(second.run.first().start_step, 3);
  EXPECT_EQ(all_forms(second), std::set<std::string>{"fast-monday-rank-0"});
  EXPECT_EQ(second.ran->chosen, 0);
  EXPECT_EQ(contents(file_), kept);
  EXPECT_EQ(second.fingerprint, first.fingerprint);
  EXPECT_TRUE(second.run.first().events_of("kernel_choices").empty());
  EXPECT_TRUE(second.run.first().events_of("fingerprint_changed").empty());
}

TEST_F(TrainChoices, OthersAreAnotherFingerprint) {
  const Attempt first = attempt(1, "monday", {}, 3);
  ASSERT_TRUE(first.run.agreed());
  std::filesystem::remove(file_);
  const Attempt second = attempt(1, "tuesday");
  ASSERT_TRUE(second.run.agreed());
  EXPECT_NE(second.fingerprint, first.fingerprint);
  const std::vector<KeptEvent> said = second.run.first().events_of("fingerprint_changed");
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].text, first.fingerprint + " -> " + second.fingerprint);
}

// Forms of shapes that this run does not use stay, and do not change the fingerprint.
TEST_F(TrainChoices, MissingOnesAreAdded) {
  const Attempt first = attempt(1, "monday", {}, 3);
  ASSERT_TRUE(first.run.agreed());
  std::string kept = contents(file_);
  const size_t cut = kept.find('\n') + 1;
  const std::string gone = kept.substr(0, cut);
  kept = kept.substr(cut) + "9x9x9nn=0: fast-other\n";
  ASSERT_TRUE(write_atomic(file_, kept).ok());
  const Attempt second = attempt(2, "tuesday");
  ASSERT_TRUE(second.run.agreed());
  EXPECT_EQ(second.ran->chosen, 1);
  EXPECT_EQ(contents(file_), kept + gone.substr(0, gone.find(':')) + ": fast-tuesday-rank-0\n");
  EXPECT_EQ(all_forms(second),
            (std::set<std::string>{"fast-monday-rank-0", "fast-tuesday-rank-0"}));
}

TEST_F(TrainChoices, AFormThatIsMissingHereStopsTheRun) {
  const Attempt first = attempt(2, "monday", {}, 3);
  ASSERT_TRUE(first.run.agreed());
  std::string kept = contents(file_);
  kept.replace(kept.find("fast"), 4, "slow");
  ASSERT_TRUE(write_atomic(file_, kept).ok());
  const Attempt second = attempt(2, "tuesday");
  for (const RankRun& rank : second.run.ranks) {
    EXPECT_EQ(rank.status.code(), Code::kFailedPrecondition) << rank.status.to_string();
    EXPECT_TRUE(rank.steps.empty());
    for (const std::string& word : {file_, std::string("no such form"), std::string("remove")})
      EXPECT_NE(rank.status.message().find(word), std::string::npos) << rank.status.message();
  }
  EXPECT_EQ(contents(file_), kept);
}

// A backend without forms leaves nothing behind.
TEST(TrainChoicesCpu, ThereAreNone) {
  const TempFolder folder;
  GroupOptions options;
  options.choices_file = folder.file("kernel-choices");
  std::string fingerprint;
  options.created = [&](int, Trainer& trainer) { fingerprint = trainer.fingerprint(); };
  const GroupRun run = run_group(micro_spec(data()), data(), options);
  ASSERT_TRUE(run.agreed());
  EXPECT_FALSE(std::filesystem::exists(options.choices_file));
  EXPECT_EQ(fingerprint, "test");
  EXPECT_TRUE(run.first().events_of("kernel_choices").empty());
}

}  // namespace
}  // namespace swax::test
