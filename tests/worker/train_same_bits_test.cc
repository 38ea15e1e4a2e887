// Goal: the promise of the product. Whatever changes that may not change the result (number of
// ranks, interruptions and other numbers of ranks after them, recompute, compute threads, prefetch,
// resharding), the digest of the final state and the bits of every loss, norm and validation stay;
// whatever must change it (seed, sum order, one bit of one gradient, one step less) does.
// One table, printed. Short form: 12 steps of 8 short sequences; SWAX_TEST_FULL=1: 40 steps and
// more rows; in sanitizer builds a few rows of 3 steps. And a stored digest that every build must
// give.
#include <atomic>
#include <cstdio>
#include <set>

#include "tests/worker/train_support.h"

namespace swax::test {
namespace {

// A part of a run: to the end, or until it is stopped (or broken off) after a step.
struct Segment {
  int ranks = 1;
  int64_t until = 0;    // 0: to the end
  bool breaks = false;  // a rank fails in the step after `until`; nothing is saved there
};
struct Row {
  std::string name;
  Changes changes;
  std::vector<Segment> segments = {{1}};
  GradientFlip flip = {};
};
// Rows that must be equal to each other; no two groups may be.
struct Group {
  std::string name;
  Changes changes;
  bool small_data = false;
  std::vector<Row> rows;
};

Row row(std::string name, std::vector<Segment> segments, Changes changes = {}) {
  return {std::move(name), std::move(changes), std::move(segments)};
}
Row ranks(int count, Changes changes = {}) {
  return row(std::to_string(count) + " ranks", {{count}}, std::move(changes));
}

int64_t steps_of_form() { return sanitized() ? 3 : full_form() ? 40 : 12; }

const Changes kNarrow = {{"activation_checkpoint.mode", "light"},
                         {"parallelism.compute_threads", "2"},
                         {"parallelism.prefetch", "0"},
                         {"parallelism.fsdp_reshard_after_forward", "always"}};

Group lanes_8() {
  const int64_t last = steps_of_form();
  Group group{"lanes 8", {{"training.reduction_lanes", "8"}}, false, {}};
  for (int count = 1; count <= 8; ++count) group.rows.push_back(ranks(count));
  const auto with = [&](const std::string& field, const std::string& value, int count) {
    group.rows.push_back(row(field + " " + value, {{count}}, {{field, value}}));
  };
  with("activation_checkpoint.mode", "light", 1);
  with("activation_checkpoint.mode", "block", 2);
  with("parallelism.compute_threads", "2", 1);
  with("parallelism.compute_threads", "2", 2);
  with("parallelism.prefetch", "0", 3);
  with("parallelism.fsdp_reshard_after_forward", "always", 3);
  with("parallelism.fsdp_reshard_after_forward", "never", 3);
  group.rows.push_back(row("light, 2 threads, no prefetch, reshard", {{3}}, kNarrow));
  group.rows.push_back(row("1 then 3 then 2 then 8", {{1, 2}, {3, 3}, {2, last - 2}, {8}}));
  group.rows.push_back(row("stop after step 1", {{2, 1}, {2}}));
  group.rows.push_back(row("stop before the last step", {{2, last - 1}, {5}}));
  group.rows.push_back(
      row("a rank breaks off in step 4", {{2, 3, true}, {3}}, {{"checkpoint.interval", "2"}}));
  group.rows.push_back(row("breaks off before any checkpoint", {{3, 1, true}, {2}}));
  if (!full_form()) return group;
  for (int count = 1; count <= 8; ++count)
    group.rows.push_back(row(std::to_string(count) + " ranks, light, reshard", {{count}}, kNarrow));
  Row chain = row("stop after every step", {});
  for (int64_t step = 1; step < last; ++step)
    chain.segments.push_back({static_cast<int>(1 + step % 4), step});
  chain.segments.push_back({2});
  group.rows.push_back(chain);
  return group;
}

Group lanes(int count) {
  Group group{"lanes " + std::to_string(count),
              {{"training.reduction_lanes", std::to_string(count)}},
              false,
              {}};
  for (int w = 1; w <= 8; ++w)
    if (full_form() || count == 1 || w % 3 == 1) group.rows.push_back(ranks(w));
  return group;
}

// An odd batch: some ranks have no slot in the last micro-step, with 6 ranks one never has any.
Group odd_batch() {
  return {"batch 5",
          {{"training.global_batch_size", "5"}},
          false,
          {ranks(1), ranks(2), ranks(3), ranks(6), row("4 then 1", {{4, 2}, {1}})}};
}

// Sizes that no tile, vector or number of ranks divides.
Group odd_model() {
  return {"odd model",
          {{"model.vocab_size", "257"},
           {"model.ff_dim", "200"},
           {"model.mlstm_heads", "3"},
           {"model.pattern", "SMM"},
           {"model.layers", "3"},
           {"model.kv_heads", "1"}},
          false,
          {ranks(1), ranks(2), ranks(3), ranks(7), row("light, reshard", {{5}}, kNarrow),
           row("block", {{1}}, {{"activation_checkpoint.mode", "block"}}),
           row("block and light", {{2}},
               {{"activation_checkpoint.mode", "block"}, {"activation_checkpoint.layers", "2"}}),
           row("2 then 3", {{2, 2}, {3}})}};
}

// A data set of little more than two steps: every resume stands near the border of an epoch.
Group epochs() {
  Group group{"epochs", {}, true, {ranks(1)}};
  for (int64_t step = 1; step < steps_of_form(); step += full_form() ? 1 : 2)
    group.rows.push_back(row("resume at " + std::to_string(step), {{1, step}, {2}}));
  return group;
}

std::vector<Group> table() {
  const std::string fewer = std::to_string(steps_of_form() - 1);
  Row flipped = ranks(1);
  flipped.flip = {.step = 2, .tensor = "layers.1.mlstm.wq", .element = 5, .bit = 12};
  if (sanitized()) {
    return {{"lanes 8", {}, false, {ranks(1), ranks(3), row("2 then 3", {{2, 1}, {3}}, kNarrow)}},
            {"another seed", {{"job.seed", "2"}}, false, {ranks(2)}}};
  }
  return {lanes_8(),
          lanes(1),
          lanes(2),
          odd_batch(),
          odd_model(),
          epochs(),
          {"another seed", {{"job.seed", "2"}}, false, {ranks(1)}},
          {"one flipped bit", {}, false, {flipped}},
          {"one step less", {{"training.steps", fewer}}, false, {ranks(1)}}};
}

class Table {
 public:
  // Runs all segments of a row; the state goes through real checkpoints.
  Trace run(const Group& group, const Row& row) {
    Changes changes = {{"training.steps", std::to_string(steps_of_form())}};
    changes.insert(changes.end(), group.changes.begin(), group.changes.end());
    changes.insert(changes.end(), row.changes.begin(), row.changes.end());
    const TrainData& data = group.small_data ? small_ : large_;
    const pb::JobSpec spec = micro_spec(data, changes);
    const TempFolder folder;
    Trace trace;
    uint64_t epoch = 0;
    for (const Segment& segment : row.segments) {
      GroupOptions options;
      options.ranks = segment.ranks;
      options.epoch = ++epoch;
      options.flip = row.flip;
      if (row.segments.size() > 1) options.ckpt_root = folder.file("ckpt");
      if (segment.until > 0 && !segment.breaks) options = stop_after(options, segment.until);
      if (segment.breaks) break_in_step(options, segment.until);
      const GroupRun result = run_group(spec, data, options);
      const bool last = segment.until == 0;
      if (segment.breaks) {
        for (const RankRun& rank : result.ranks) EXPECT_FALSE(rank.status.ok()) << row.name;
        EXPECT_EQ(result.first().steps.back().report.step, segment.until) << row.name;
      } else {
        EXPECT_TRUE(result.agreed()) << group.name << ", " << row.name;
        EXPECT_EQ(result.first().outcome.kind,
                  last ? RunOutcome::Kind::kDone : RunOutcome::Kind::kStopped)
            << row.name;
      }
      for (const RankRun& rank : result.ranks) trace.add(rank);
    }
    EXPECT_FALSE(trace.conflict) << group.name << ", " << row.name << ": a repeated step differs";
    return trace;
  }

 private:
  // The last rank fails in its third exchange after the step.
  static void break_in_step(GroupOptions& options, int64_t step) {
    const auto left = std::make_shared<std::atomic<int>>(-1);
    const int victim = options.ranks - 1;
    options.stepped = [=](int rank, Trainer&, const StepReport& report) {
      if (rank == victim && report.step == step) left->store(6);
    };
    options.faults.before = [=](int rank, int64_t) {
      return rank != victim || left->load() < 0 || left->fetch_sub(1) > 0;
    };
  }

  const TrainData large_;
  const TrainData small_{20, 70};
};

void print_row(const std::string& group, const Row& row, const Trace& trace, bool same) {
  std::string world;
  for (const Segment& segment : row.segments)
    world += (world.empty() ? "" : ">") + std::to_string(segment.ranks);
  if (world.size() > 9) world = world.substr(0, 7) + "..";
  std::printf("%-16s %-9s %-42s %s %s\n", group.c_str(), world.c_str(), row.name.c_str(),
              trace.digest.c_str(), same ? "same" : "DIFFERS");
  std::fflush(stdout);
}

TEST(SameBits, Table) {
  Table runs;
  std::map<std::string, std::string> group_of_digest;
  std::printf("%-16s %-9s %-42s %-32s\n", "group", "ranks", "what", "digest");
  for (const Group& group : table()) {
    Trace wanted;
    for (size_t i = 0; i < group.rows.size(); ++i) {
      const Trace trace = runs.run(group, group.rows[i]);
      if (i == 0) wanted = trace;
      const std::string difference = wanted.difference(trace);
      print_row(group.name, group.rows[i], trace, difference.empty());
      EXPECT_EQ(difference, "") << group.name << ", " << group.rows[i].name;
    }
    ASSERT_EQ(wanted.digest.size(), 32U);
    ASSERT_FALSE(wanted.steps.empty());
    // What the small data holds out is shorter than a window.
    ASSERT_EQ(wanted.validations.empty(), group.small_data);
    const auto [it, added] = group_of_digest.emplace(wanted.digest, group.name);
    EXPECT_TRUE(added) << group.name << " has the digest of " << it->second;
  }
}

// Optimization and sanitizers are no part of the arithmetic: dev, release, asan and tsan builds
// train to one state. The plain-loop GEMM, since BLAS differs between processors.
TEST(SameBits, EveryBuildGivesTheGoldenDigest) {
  const TrainData data;
  const pb::JobSpec spec = micro_spec(data, {{"training.steps", "5"}});
  GroupOptions options;
  options.ranks = 2;
  options.plain_gemm = true;
  const GroupRun run = run_group(spec, data, options);
  ASSERT_TRUE(run.agreed());
  Trace trace;
  trace.add(run.first());
  EXPECT_EQ(trace.steps.size(), 5U);
  EXPECT_EQ(trace.digest, "62cb4bb291142464eb422c344fbeff2f");
}

}  // namespace
}  // namespace swax::test
