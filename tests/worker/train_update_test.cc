// Goal: gradient norm, clip and AdamW of a sharded state equal the float64 reference within the
// derived bounds, and are the same bits for every number of ranks.
#include <cmath>
#include <thread>

#include "jobs/schedule.h"
#include "tests/reference/adamw.h"
#include "tests/support/tensor_check.h"
#include "tests/worker/train_support.h"
#include "worker/train/optimizer.h"

namespace swax::test {
namespace {

constexpr int64_t kStep = 2;  // steps done: moments are not zero, bias corrections not one

// One value per element of every tensor, in table order.
using Values = std::vector<std::vector<float>>;
struct State {
  Values p, m, v, g;
  StepScalars scalars;
};

Values draw(const ModelShape& shape, const char* what, double std) {
  Values values;
  for (const TensorInfo& info : shape.tensors)
    values.push_back(random_normal(41, what + info.name, info.elements(), {.std = std}));
  return values;
}

State begin_state(const ModelShape& shape, const pb::JobSpec& spec, double gradient_std) {
  State s{draw(shape, "p", 1.0),
          draw(shape, "m", 0.1),
          draw(shape, "v", 0.1),
          draw(shape, "g", gradient_std),
          {}};
  // As moments of gradients have it: v >= m^2, so no element moves by more than a few lr.
  for (size_t t = 0; t < s.v.size(); ++t)
    for (size_t i = 0; i < s.v[t].size(); ++i)
      s.v[t][i] = s.v[t][i] * s.v[t][i] + s.m[t][i] * s.m[t][i];
  const BiasCorrection bias = bias_correction(spec, kStep);
  s.scalars.lr = learning_rate(spec, kStep);
  s.scalars.weight_decay = static_cast<float>(spec.optimizer().weight_decay());
  s.scalars.bias1 = bias.bias1;
  s.scalars.bias2 = bias.bias2;
  s.scalars.max_norm = static_cast<float>(spec.training().max_norm());
  return s;
}

// Between whole tensors and this rank's flat shard.
void scatter(const Values& values, const StateTable& table, Tensor flat) {
  for (const StatePiece& piece : table.pieces())
    std::copy_n(values[static_cast<size_t>(piece.tensor)].begin() + piece.tensor_begin,
                piece.elements, flat.f32() + piece.flat_begin);
}
void gather(Tensor flat, const StateTable& table, Values* values) {
  for (const StatePiece& piece : table.pieces())
    std::copy_n(flat.f32() + piece.flat_begin, piece.elements,
                (*values)[static_cast<size_t>(piece.tensor)].begin() + piece.tensor_begin);
}

Status update_rank(const ModelShape& shape, const pb::JobSpec& spec, Collectives& shard,
                   const State& begin, State* end) {
  SWAX_ASSIGN(const auto backend, open_backend({}));
  SWAX_ASSIGN(const auto compute, backend->make_stream());
  SWAX_ASSIGN(const auto comm, backend->make_stream());
  const auto replica = make_local_collectives(1);
  Arena arena = Arena::measuring();
  RankContext rank{*backend, *compute, *comm, arena, shard, *replica[0]};
  const Layout layout = make_layout(shape, shard.size());
  const SlotPlan plan{.slots = 8, .ranks = shard.size(), .lanes = 8};
  SWAX_ASSIGN(const auto fsdp, Fsdp::create(rank, shape, layout, plan, plan_options(spec)));
  SWAX_ASSIGN(const auto optimizer, Optimizer::create(rank, shape, layout, spec, *fsdp));
  const StateTable table(shape, layout, shard.rank());
  // Padding holds NaN: it must enter nothing.
  const Tensor sum = fsdp->gradient_sum();
  std::fill_n(sum.f32(), sum.elements(), std::nanf(""));
  scatter(begin.p, table, fsdp->master());
  scatter(begin.m, table, fsdp->adam_m());
  scatter(begin.v, table, fsdp->adam_v());
  scatter(begin.g, table, sum);
  StepScalars scalars = begin.scalars;
  SWAX_TRY(optimizer->update(&scalars, Event{}));
  // Ranks own different elements of `end`.
  gather(fsdp->master(), table, &end->p);
  gather(fsdp->adam_m(), table, &end->m);
  gather(fsdp->adam_v(), table, &end->v);
  if (shard.rank() == 0) end->scalars = scalars;
  return ok();
}

State update(const ModelShape& shape, const pb::JobSpec& spec, int ranks, const State& begin) {
  State end = begin;
  auto handles = make_local_collectives(ranks);
  std::vector<std::thread> threads;
  for (auto& handle : handles) {
    threads.emplace_back([&, shard = handle.get()] {
      const Status status = update_rank(shape, spec, *shard, begin, &end);
      EXPECT_TRUE(status.ok()) << status.to_string();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return end;
}

// The sum in long double: its own error is below that of the bound by 2^11.
double exact_norm(const Values& g) {
  long double sum = 0.0L;
  for (const std::vector<float>& tensor : g)
    for (const float value : tensor) sum += static_cast<long double>(value) * value;
  return static_cast<double>(std::sqrt(sum));
}

void compare(const ModelShape& shape, const pb::JobSpec& spec, const State& begin,
             const State& end) {
  const double norm = exact_norm(begin.g);
  // Longest chain of additions: a row of e elements has e / 8 + 3, the tree over rows log2(rows);
  // all terms are positive, the square root halves the relative error and rounds once.
  double additions = 0.0, rows = 0.0;
  for (const TensorInfo& info : shape.tensors) {
    additions = std::max(additions, static_cast<double>(info.row_elements()) / 8.0 + 4.0);
    rows += static_cast<double>(info.rows());
  }
  const double bound = ((additions + std::log2(rows) + 1.0) / 2.0 + 1.0) * 0x1p-53;
  EXPECT_NEAR(end.scalars.grad_norm / norm, 1.0, bound);
  EXPECT_EQ(end.scalars.nonfinite, 0);
  const double clip = reference::clip_factor(norm, spec.training().max_norm());
  EXPECT_NEAR(static_cast<double>(end.scalars.clip) / clip, 1.0, 0x1p-24);

  const pb::Optimizer& o = spec.optimizer();
  for (size_t t = 0; t < shape.tensors.size(); ++t) {
    const TensorInfo& info = shape.tensors[t];
    reference::AdamWState state{widen(begin.p[t]), widen(begin.m[t]), widen(begin.v[t])};
    reference::adamw_step({static_cast<double>(begin.scalars.lr), o.beta1(), o.beta2(), o.eps(),
                           info.decay ? o.weight_decay() : 0.0},
                          kStep + 1, clip, widen(begin.g[t]), state);
    // kernels/spec/optim.h: c = 3 for the moments, 2 for the weights. The clip factor is one more
    // rounding (two in the square), beta as fp32 one more.
    EXPECT_TRUE(tensor_near("p " + info.name, end.p[t], state.p, rounding_bound(1, 2)));
    EXPECT_TRUE(tensor_near("m " + info.name, end.m[t], state.m, rounding_bound(1, 5)));
    EXPECT_TRUE(tensor_near("v " + info.name, end.v[t], state.v, rounding_bound(1, 6)));
  }
}

TEST(Optimizer, EqualsFloat64AndItselfForEveryNumberOfRanks) {
  const TrainData data(20, 70);
  const pb::JobSpec spec = micro_spec(data);
  auto shape = model_shape(spec.model());
  ASSERT_TRUE(shape.ok());
  for (const double gradient_std : {1.0, 1e-6}) {  // clipped, not clipped
    const State begin = begin_state(*shape, spec, gradient_std);
    const State one = update(*shape, spec, 1, begin);
    EXPECT_EQ(one.scalars.clip < 1.0F, gradient_std == 1.0);
    compare(*shape, spec, begin, one);
    for (const int ranks : {2, 3, 5}) {
      const State other = update(*shape, spec, ranks, begin);
      EXPECT_EQ(other.scalars.grad_norm, one.scalars.grad_norm) << ranks;
      for (size_t t = 0; t < shape->tensors.size(); ++t) {
        EXPECT_TRUE(same_bits("p", other.p[t], one.p[t])) << ranks;
        EXPECT_TRUE(same_bits("m", other.m[t], one.m[t])) << ranks;
        EXPECT_TRUE(same_bits("v", other.v[t], one.v[t])) << ranks;
      }
    }
  }
}

// Canary: a forgotten decay or bias correction is far outside the bounds.
TEST(Optimizer, TheBoundSeesAForgottenDecay) {
  const TrainData data(20, 70);
  const pb::JobSpec spec = micro_spec(data);
  auto shape = model_shape(spec.model());
  ASSERT_TRUE(shape.ok());
  const State begin = begin_state(*shape, spec, 1.0);
  State no_decay = begin;
  no_decay.scalars.weight_decay = 0.0F;
  const State right = update(*shape, spec, 1, begin), wrong = update(*shape, spec, 1, no_decay);
  for (size_t t = 0; t < shape->tensors.size(); ++t) {
    const double error = rel_error(wrong.p[t], widen(right.p[t]));
    if (shape->tensors[t].decay) {
      EXPECT_GT(error, 2.0 * rounding_bound(1, 2)) << shape->tensors[t].name;
    } else {
      EXPECT_EQ(error, 0.0) << shape->tensors[t].name;
    }
  }
}

TEST(GradientFlip, Parses) {
  const auto flip = parse_gradient_flip("7:layers.0.attn.wq:12:3");
  ASSERT_TRUE(flip.ok());
  EXPECT_EQ(flip->step, 7);
  EXPECT_EQ(flip->tensor, "layers.0.attn.wq");
  EXPECT_EQ(flip->element, 12);
  EXPECT_EQ(flip->bit, 3);
  for (const char* bad : {"", "7", "7:x:1", "0:x:1:1", "7:x:-1:1", "7:x:1:32", "7:x:1:1:1"})
    EXPECT_EQ(parse_gradient_flip(bad).status().code(), Code::kInvalidArgument) << bad;
}

}  // namespace
}  // namespace swax::test
