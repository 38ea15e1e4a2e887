// Goal: the mLSTM cell on the device equals float64. The simple f32 form keeps the bound of
// kernels/spec/mlstm.h, the simple bf16 form adds one half ulp of bf16 for each rounding on the
// way, and the form chosen for bf16 has at most twice the error of the simple one.
#include "kernels/cuda/mlstm.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "tests/kernels/cuda_device.h"
#include "tests/kernels/mlstm_case.h"

namespace swax::test {
namespace {

using cuda::MlstmForm;

MlstmInputs bf16_inputs(const MlstmCase& c) {
  MlstmInputs in = mlstm_inputs(c);
  for (std::vector<float>* x : {&in.q, &in.k, &in.v, &in.dh}) {
    for (float& e : *x) e = bf16_round(e);
  }
  return in;
}

// Device tensors of one case, filled; outputs poisoned.
struct DeviceCase {
  DeviceCase(const MlstmCase& c, const MlstmInputs& in, DType dtype)
      : sizes(c),
        q("q", dtype, {c.tokens, c.heads, c.qk}, in.q),
        k("k", dtype, {c.tokens, c.heads, c.qk}, in.k),
        v("v", dtype, {c.tokens, c.heads, c.v}, in.v),
        dh("dh", dtype, {c.tokens, c.heads, c.v}, in.dh),
        i("i", DType::kF32, {c.tokens, c.heads}, in.i),
        f("f", DType::kF32, {c.tokens, c.heads}, in.f),
        reset("reset", DType::kU8, {c.tokens}),
        h("h", dtype, {c.tokens, c.heads, c.v}),
        states("states", dtype, {states_elements(c, dtype)}),
        m_state("m_state", DType::kF32, {chunks(c) + 1, c.heads}),
        m("m", DType::kF32, {c.tokens, c.heads}),
        den("den", DType::kF32, {c.tokens, c.heads}),
        dq("dq", dtype, {c.tokens, c.heads, c.qk}),
        dk("dk", dtype, {c.tokens, c.heads, c.qk}),
        dv("dv", dtype, {c.tokens, c.heads, c.v}),
        di("di", DType::kF32, {c.tokens, c.heads}),
        df("df", DType::kF32, {c.tokens, c.heads}),
        scratch("scratch", DType::kF32, {mlstm_scratch(c.tokens, c.heads, c.qk, c.v, c.chunk)}),
        scratch_back("backward scratch", DType::kF32,
                     {mlstm_backward_scratch(c.tokens, c.heads, c.qk, c.v, c.chunk)}) {
    if (!c.reset.empty()) {
      const std::vector<uint8_t> bytes(c.reset.begin(), c.reset.end());
      reset.write_bytes(bytes.data(), c.tokens);
    }
  }
  static int64_t chunks(const MlstmCase& c) { return mlstm_chunks(c.tokens, c.chunk); }
  static int64_t states_elements(const MlstmCase& c, DType dtype) {
    return dtype == DType::kBF16 ? cuda::mlstm_bf16_states(chunks(c), c.heads, c.qk, c.v)
                                 : (chunks(c) + 1) * c.heads * c.qk * (c.v + 1);
  }
  void poison() {
    for (DeviceTensor* t :
         {&h, &states, &m_state, &m, &den, &dq, &dk, &dv, &di, &df, &scratch, &scratch_back}) {
      t->poison();
    }
  }

  void run(MlstmForm form) {
    const Tensor borders = sizes.reset.empty() ? Tensor{} : reset.tensor();
    const MlstmArgs a{q.tensor(),       k.tensor(), v.tensor(),   i.tensor(),
                      f.tensor(),       borders,    h.tensor(),   states.tensor(),
                      m_state.tensor(), m.tensor(), den.tensor(), scratch.tensor(),
                      sizes.chunk,      false};
    const Status there = cuda::launch_mlstm(nullptr, a, form);
    EXPECT_TRUE(there.ok()) << there.to_string();
    MlstmBackwardArgs b;
    b.q_TNK = a.q_TNK;
    b.k_TNK = a.k_TNK;
    b.v_TNU = a.v_TNU;
    b.i_TN = a.i_TN;
    b.f_TN = a.f_TN;
    b.reset_T = borders;
    b.h_TNU = a.h_TNU;
    b.states_CNKU1 = a.states_CNKU1;
    b.m_state_CN = a.m_state_CN;
    b.m_TN = a.m_TN;
    b.den_TN = a.den_TN;
    b.dh_TNU = dh.tensor();
    b.dq_TNK = dq.tensor();
    b.dk_TNK = dk.tensor();
    b.dv_TNU = dv.tensor();
    b.di_TN = di.tensor();
    b.df_TN = df.tensor();
    b.scratch = scratch_back.tensor();
    b.chunk = sizes.chunk;
    const Status back = cuda::launch_mlstm_backward(nullptr, b, form);
    EXPECT_TRUE(back.ok()) << back.to_string();
    sync_device();
  }

  // [C, N, K, U + 1] in f32, whatever the storage.
  std::vector<float> packed_states() const {
    const std::vector<float> stored = states.values();
    if (states.tensor().dtype == DType::kF32) return stored;
    const int64_t rows = (chunks(sizes) + 1) * sizes.heads * sizes.qk;
    const std::vector<std::byte> raw = states.bytes();
    std::vector<float> n(static_cast<size_t>(rows)), out;
    std::memcpy(n.data(), raw.data() + rows * sizes.v * 2, n.size() * sizeof(float));
    for (int64_t r = 0; r < rows; ++r) {
      out.insert(out.end(), stored.begin() + r * sizes.v, stored.begin() + (r + 1) * sizes.v);
      out.push_back(n[static_cast<size_t>(r)]);
    }
    return out;
  }
  Outputs results() const {
    return {{"h", h.values()},           {"m", m.values()},   {"den", den.values()},
            {"states", packed_states()}, {"dq", dq.values()}, {"dk", dk.values()},
            {"dv", dv.values()},         {"di", di.values()}, {"df", df.values()}};
  }

  MlstmCase sizes;
  DeviceTensor q, k, v, dh, i, f, reset, h, states, m_state, m, den, dq, dk, dv, di, df, scratch,
      scratch_back;
};

Outputs run(const MlstmCase& c, const MlstmInputs& in, DType dtype, MlstmForm form) {
  DeviceCase device(c, in, dtype);
  device.run(form);
  return device.results();
}

// Roundings to bf16 on the way, each of at most 2^-8. h: state, P, result; m, den: none (gates,
// sums and n are f32); states: weighted keys, the result. Backward: h in the normaliser's gradient
// and state, weights of a product and the state gradient, the result (di, df: stored in f32).
constexpr double kRoundings[] = {3, 0, 0, 2, 4, 4, 4, 4, 4};

void check(const MlstmCase& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " N " << c.heads << " K " << c.qk << " U "
                                  << c.v << " chunk " << c.chunk << " borders " << !c.reset.empty()
                                  << " i " << c.i_mean << " f " << c.f_mean);
  const MlstmInputs in = bf16_inputs(c);
  const MlstmWants parts = mlstm_wants(c, in);
  std::vector<Want> want = parts.forward;
  want.insert(want.end(), parts.backward.begin(), parts.backward.end());
  for (Want& w : want) {
    // Zero but for the rounding of float64, as df of a first token alone.
    const auto tiny = [](double x) { return std::abs(x) < 1e-15; };
    if (std::all_of(w.values.begin(), w.values.end(), tiny)) {
      std::fill(w.values.begin(), w.values.end(), 0.0);
    }
  }
  const Outputs f32 = run(c, in, DType::kF32, MlstmForm::kSimple);
  const Outputs simple = run(c, in, DType::kBF16, MlstmForm::kSimple);
  const Outputs chosen = run(c, in, DType::kBF16, MlstmForm::kAuto);
  for (size_t j = 0; j < want.size(); ++j) {
    const Want& w = want[j];
    const double exact = rounding_bound(c.chunk + c.qk, j < 4 ? 8 : 16);
    const double rounded = w.bound + kRoundings[j] * (w.bound / exact) / 256.0;
    EXPECT_TRUE(tensor_near("f32 " + w.name, f32[j].values, w.values, w.bound));
    EXPECT_TRUE(tensor_near("simple bf16 " + w.name, simple[j].values, w.values, rounded));
    const double error = rel_error(std::span<const float>(simple[j].values), w.values);
    EXPECT_TRUE(
        tensor_near("chosen bf16 " + w.name, chosen[j].values, w.values, tuned_bound(error)));
  }
}

TEST(CudaMlstm, EqualsReferenceForEveryChunk) {
  SWAX_NEED_DEVICE();
  for (const int64_t chunk : {1, 16, 32, 35, 64, 70, 100}) {
    check({.tokens = 70, .heads = 2, .qk = 16, .v = 24, .chunk = chunk});
  }
  check({.tokens = 33, .heads = 3, .qk = 5, .v = 3, .chunk = 8});
  check({.tokens = 1, .heads = 1, .qk = 8, .v = 8, .chunk = 32});
}

TEST(CudaMlstm, ForgetsAtBorders) {
  SWAX_NEED_DEVICE();
  const std::vector<std::vector<int32_t>> borders = {
      doc_starts(70, {0}),
      doc_starts(70, {15, 16, 17}),
      doc_starts(70, {0, 16, 32, 48, 64}),
      doc_starts(70, {5, 6, 7, 20, 40, 41, 69}),
      std::vector<int32_t>(70, 1),
  };
  for (const auto& reset : borders) {
    check({.tokens = 70, .heads = 2, .qk = 16, .v = 24, .chunk = 16, .reset = reset});
    check({.tokens = 70, .heads = 2, .qk = 16, .v = 24, .chunk = 32, .reset = reset});
  }
}

TEST(CudaMlstm, HoldsAtTheGateCaps) {
  SWAX_NEED_DEVICE();
  MlstmCase c{.tokens = 70, .heads = 2, .qk = 16, .v = 24, .chunk = 16};
  c.gate_spread = 0.0;
  c.conditioned = true;
  for (const double i_gate : {-15.0, 15.0}) {
    for (const double f_gate : {-15.0, 0.0, 15.0}) {
      c.i_mean = i_gate;
      c.f_mean = f_gate;
      check(c);
    }
  }
  c.alternate_gates = true;
  check(c);
  c.reset = doc_starts(70, {11, 32});
  check(c);
}

// The shape of the presets: 256 / 512, chunk 256; the last chunk full, short and a single token.
TEST(CudaMlstm, EqualsReferenceForTheModelShape) {
  SWAX_NEED_DEVICE();
  const MlstmCase model{.tokens = 512, .heads = 1, .qk = 256, .v = 512, .chunk = 256};
  check(model);
  for (const int64_t tokens : {257, 448}) {
    MlstmCase c = model;
    c.tokens = tokens;
    c.i_mean = -10.0;  // as the model starts
    c.f_mean = 4.5;
    check(c);
  }
  MlstmCase c = model;
  c.heads = 2;
  c.tokens = 576;
  c.reset = doc_starts(576, {1, 63, 64, 200, 256, 400, 511});
  check(c);
}

// The simple f32 form stands for float64, far inside the bounds.
void equals_the_simple_form(const MlstmCase& c) {
  const MlstmInputs in = bf16_inputs(c);
  const Outputs f32 = run(c, in, DType::kF32, MlstmForm::kSimple);
  const Outputs simple = run(c, in, DType::kBF16, MlstmForm::kSimple);
  const Outputs chosen = run(c, in, DType::kBF16, MlstmForm::kAuto);
  for (size_t j = 0; j < f32.size(); ++j) {
    const std::vector<double> want(f32[j].values.begin(), f32[j].values.end());
    const double error = rel_error(std::span<const float>(simple[j].values), want);
    EXPECT_TRUE(tensor_near("chosen bf16 " + f32[j].name, chosen[j].values, want,
                            tuned_bound(error) + rounding_bound(c.chunk + c.qk, j < 4 ? 8 : 16)));
  }
}

// More work than a device takes at once: blocks that stay go from piece to piece, halves of chunks
// change places, rings wrap around.
TEST(CudaMlstm, EqualsTheSimpleFormOverManyChunks) {
  SWAX_NEED_DEVICE();
  MlstmCase c{.tokens = 2850, .heads = 5, .qk = 256, .v = 512, .chunk = 256};
  c.reset = doc_starts(c.tokens, {700, 701, 1536, 2600});
  equals_the_simple_form(c);
}

// The fewest chunks with which every ring of the kernels comes round; for checkers of races.
TEST(CudaMlstm, GoesRoundItsRings) {
  SWAX_NEED_DEVICE();
  MlstmCase c{.tokens = 1400, .heads = 1, .qk = 256, .v = 512, .chunk = 256};
  c.reset = doc_starts(c.tokens, {700});
  equals_the_simple_form(c);
}

TEST(CudaMlstm, HoldsAtTheGateCapsInTheModelShape) {
  SWAX_NEED_DEVICE();
  MlstmCase c{.tokens = 300, .heads = 1, .qk = 256, .v = 512, .chunk = 256};
  c.alternate_gates = true;
  check(c);
  c.alternate_gates = false;
  c.gate_spread = 0.0;
  c.i_mean = -15.0;
  c.f_mean = 15.0;
  check(c);
  c.i_mean = 15.0;
  c.f_mean = -15.0;
  c.conditioned = true;  // every token sees itself alone: its gradients cancel
  check(c);
}

TEST(CudaMlstm, GivesTheSameBitsAgain) {
  SWAX_NEED_DEVICE();
  MlstmCase c{.tokens = 1100, .heads = 4, .qk = 256, .v = 512, .chunk = 256};
  c.reset = doc_starts(1100, {333, 640});
  const MlstmInputs in = bf16_inputs(c);
  for (const MlstmForm form : {MlstmForm::kSimple, MlstmForm::kAuto}) {
    DeviceCase device(c, in, DType::kBF16);
    device.run(form);
    const Outputs first = device.results();
    const int reruns = form == MlstmForm::kAuto ? 20 : 2;
    for (int rerun = 0; rerun < reruns; ++rerun) {
      device.poison();
      device.run(form);
      const Outputs again = device.results();
      for (size_t j = 0; j < first.size(); ++j) {
        ASSERT_TRUE(same_bits(first[j].name, again[j].values, first[j].values)) << rerun;
      }
    }
  }
}

TEST(CudaMlstm, PassesNaNOn) {
  SWAX_NEED_DEVICE();
  const MlstmCase c{.tokens = 300, .heads = 1, .qk = 256, .v = 512, .chunk = 256};
  for (int which = 0; which < 5; ++which) {
    MlstmInputs in = bf16_inputs(c);
    std::vector<float>* x[] = {&in.q, &in.k, &in.v, &in.i, &in.f};
    (*x[which])[x[which]->size() / 2] = std::nanf("");
    for (const MlstmForm form : {MlstmForm::kSimple, MlstmForm::kAuto}) {
      const Outputs got = run(c, in, DType::kBF16, form);
      EXPECT_FALSE(all_finite("h", got[0].values)) << which;
      EXPECT_FALSE(all_finite("dq", got[4].values)) << which;
    }
  }
}

TEST(CudaMlstmStep, ChainEqualsTheReference) {
  SWAX_NEED_DEVICE();
  const MlstmCase c{.tokens = 40, .heads = 2, .qk = 16, .v = 24, .chunk = 16};
  const MlstmInputs in = bf16_inputs(c);
  const MlstmWants want = mlstm_wants(c, in);
  const int64_t width = c.v + 1;
  DeviceTensor state("state", DType::kF32, {c.heads, c.qk, width},
                     std::vector<float>(static_cast<size_t>(c.heads * c.qk * width), 0.0F));
  DeviceTensor m("m", DType::kF32, {c.heads},
                 std::vector<float>(static_cast<size_t>(c.heads), kMlstmNoPast));
  std::vector<float> rows;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const MlstmInputs now = mlstm_slice(c, in, t, 1);
    const DeviceTensor q("q", DType::kF32, {c.heads, c.qk}, now.q);
    const DeviceTensor k("k", DType::kF32, {c.heads, c.qk}, now.k);
    const DeviceTensor v("v", DType::kF32, {c.heads, c.v}, now.v);
    const DeviceTensor i("i", DType::kF32, {c.heads}, now.i);
    const DeviceTensor f("f", DType::kF32, {c.heads}, now.f);
    const DeviceTensor h("h", DType::kF32, {c.heads, c.v});
    const MlstmStepArgs a{q.tensor(), k.tensor(), v.tensor(),     i.tensor(),
                          f.tensor(), h.tensor(), state.tensor(), m.tensor()};
    ASSERT_TRUE(cuda::launch_mlstm_step(nullptr, a).ok());
    const std::vector<float> row = h.values();
    rows.insert(rows.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(tensor_near("h", rows, want.forward[0].values, rounding_bound(c.tokens + c.qk, 8)));
}

}  // namespace
}  // namespace swax::test
