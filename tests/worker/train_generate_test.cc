// Goal: what `generate` reads tells an absent checkpoint from a damaged one. Method: two
// checkpoints of a short run, damaged in turn.
#include "worker/train/generate.h"

#include <unistd.h>

#include "proto/base/files.h"
#include "tests/worker/train_support.h"

namespace swax::test {
namespace {

const TrainData& data() {
  static const TrainData built(60, 200);
  return built;
}

class LoadWeights : public testing::Test {
 protected:
  void SetUp() override {
    spec_ = micro_spec(data(), {{"training.steps", "2"}, {"checkpoint.interval", "1"}});
    GroupOptions options;
    options.ckpt_root = root();
    ASSERT_TRUE(run_group(spec_, data(), options).agreed());
    ASSERT_EQ(good_checkpoints_of(root()).size(), 2U);
  }
  std::string root() const { return folder_.file("ckpt"); }
  std::string newest() const { return join_path(root(), good_checkpoints_of(root()).front()); }
  // The step that was loaded, or why not.
  Result<int64_t> load(int64_t step) const {
    SWAX_ASSIGN(const ModelShape shape, model_shape(spec_.model()));
    SWAX_ASSIGN(const auto backend, open_backend({}));
    int64_t loaded = -1;
    SWAX_TRY(load_model_weights(*backend, shape, root(), step, &loaded).status());
    return loaded;
  }

 private:
  TempFolder folder_;
  pb::JobSpec spec_;
};

void cut(const std::string& path, int64_t bytes) {
  ASSERT_EQ(::truncate(path.c_str(), bytes), 0) << path;
}

TEST_F(LoadWeights, AnAbsentCheckpointIsNotFound) {
  EXPECT_EQ(*load(-1), 2);
  EXPECT_EQ(*load(1), 1);
  EXPECT_EQ(load(3).status().code(), Code::kNotFound);
  // A folder that was never committed is no checkpoint.
  ASSERT_EQ(::unlink(join_path(newest(), "COMMITTED").c_str()), 0);
  EXPECT_EQ(load(2).status().code(), Code::kNotFound);
  EXPECT_EQ(*load(-1), 1);
}

TEST_F(LoadWeights, ADamagedCheckpointIsDamage) {
  const std::string second = newest();
  ASSERT_TRUE(remove_tree(join_path(second, "rank-00000.db")).ok());
  EXPECT_EQ(load(2).status().code(), Code::kDataLoss);
  EXPECT_EQ(*load(-1), 1);  // the one before is whole
  const std::string first = join_path(root(), good_checkpoints_of(root()).back());
  ASSERT_NE(first, second);
  cut(join_path(first, "COMMITTED"), 10);
  for (const int64_t step : {int64_t{1}, int64_t{-1}}) {
    const Status status = load(step).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << status.to_string();
  }
  EXPECT_EQ(load(3).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace swax::test
