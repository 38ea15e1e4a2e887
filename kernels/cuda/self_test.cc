#include "kernels/cuda/self_test.h"

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/mlstm.h"
#include "kernels/cuda/self_test_rig.h"
#include "kernels/cuda/swa.h"
#include "proto/base/hash.h"
#include "proto/base/rng.h"
#include "proto/base/text.h"

namespace swax::cuda {
namespace {

// 0.5 2^-24 sqrt(K) c: kernels/README.md.
double f32_bound(int64_t longest_sum, double chained) {
  return std::ldexp(0.5, -24) * std::sqrt(static_cast<double>(longest_sum)) * chained;
}

// Not a number when one of them is.
double difference(std::span<const float> got, std::span<const float> want) {
  double squares = 0.0, scale = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double w = static_cast<double>(want[i]), d = static_cast<double>(got[i]) - w;
    squares += d * d;
    scale += w * w;
  }
  return scale > 0.0 ? std::sqrt(squares / scale) : std::sqrt(squares);
}

// Values that bf16 holds exactly: the same for all forms.
std::vector<float> normals(std::string_view name, int64_t count, float mean = 0.0F) {
  std::vector<float> x(static_cast<size_t>(count));
  const uint64_t stream = xxh3_64(name);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = round_to_bf16(mean + normal_at(1, stream, i));
  }
  return x;
}

// One result of a kernel: its name and the bound of the simple f32 form.
struct Named {
  const char* name;
  double bound;
};
using Results = std::vector<std::vector<float>>;

// The three forms of one kernel, and the tuned one again.
template <typename Run>
Status check_kernel(const char* kernel, std::span<const Named> names, Run run) {
  SWAX_ASSIGN(const Results exact, run(DType::kF32, false));
  SWAX_ASSIGN(const Results simple, run(DType::kBF16, false));
  SWAX_ASSIGN(const Results tuned, run(DType::kBF16, true));
  for (size_t i = 0; i < names.size(); ++i) {
    SWAX_TRY(check_result(kernel, names[i].name, tuned[i], simple[i], exact[i], names[i].bound));
  }
  SWAX_ASSIGN(const Results again, run(DType::kBF16, true));
  for (size_t i = 0; i < names.size(); ++i) {
    if (again[i] == tuned[i]) continue;
    return internal_error("self test: " + std::string(kernel) + ", " + names[i].name +
                          ": other bits when it is run again: do not use this GPU");
  }
  return ok();
}

// Tokens of both sides of tile borders, two documents, a band, grouped heads.
Status check_swa(SelfTestRig& rig) {
  constexpr int64_t kTokens = 320, kHeads = 2, kGroups = 1, kSize = 128, kWindow = 100,
                    kBorder = 130;
  const std::vector<float> q = normals("q", kTokens * kHeads * kSize);
  const std::vector<float> k = normals("k", kTokens * kGroups * kSize);
  const std::vector<float> v = normals("v", kTokens * kGroups * kSize);
  const std::vector<float> d_o = normals("do", kTokens * kHeads * kSize);
  std::vector<int32_t> doc_start(kTokens, 0);
  for (size_t t = kBorder; t < doc_start.size(); ++t) doc_start[t] = kBorder;
  const auto run = [&](DType dtype, bool tuned) -> Result<Results> {
    rig.reset();
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kSize)));
    SwaBackwardArgs b;
    b.q_THE = rig.tensor(dtype, {kTokens, kHeads, kSize}, q);
    b.k_TGE = rig.tensor(dtype, {kTokens, kGroups, kSize}, k);
    b.v_TGE = rig.tensor(dtype, {kTokens, kGroups, kSize}, v);
    b.doc_start_T = rig.integers(doc_start);
    b.o_THE = rig.tensor(dtype, {kTokens, kHeads, kSize});
    b.lse_TH = rig.tensor(DType::kF32, {kTokens, kHeads});
    b.do_THE = rig.tensor(dtype, {kTokens, kHeads, kSize}, d_o);
    b.dq_THE = rig.tensor(dtype, {kTokens, kHeads, kSize});
    b.dk_TGE = rig.tensor(dtype, {kTokens, kGroups, kSize});
    b.dv_TGE = rig.tensor(dtype, {kTokens, kGroups, kSize});
    b.scratch = rig.tensor(DType::kF32, {swa_backward_scratch(b.q_THE)});
    b.window = kWindow;
    b.scale = scale;
    SwaArgs a;
    a.q_THE = b.q_THE;
    a.k_TGE = b.k_TGE;
    a.v_TGE = b.v_TGE;
    a.doc_start_T = b.doc_start_T;
    a.o_THE = b.o_THE;
    a.lse_TH = b.lse_TH;
    a.window = kWindow;
    a.scale = scale;
    const SwaForm form = tuned ? SwaForm::kAuto : SwaForm::kSimple;
    SWAX_TRY(rig.upload());
    SWAX_TRY(launch_swa(raw(rig.stream()), a, form));
    SWAX_TRY(launch_swa_backward(raw(rig.stream()), b, form));
    SWAX_TRY(rig.download());
    return Results{rig.values(b.o_THE), rig.values(b.lse_TH), rig.values(b.dq_THE),
                   rig.values(b.dk_TGE), rig.values(b.dv_TGE)};
  };
  const double there = f32_bound(kWindow + kSize, 4), back = f32_bound(kWindow + kSize, 8);
  const Named names[] = {{"o", there},
                         {"lse", there},
                         {"gradient dq", back},
                         {"gradient dk", back},
                         {"gradient dv", back}};
  return check_kernel("attention", names, run);
}

// The shape of the presets, two chunks, the second one short.
class MlstmCheck {
 public:
  explicit MlstmCheck(SelfTestRig& rig) : rig_(rig) {}

  Status check() {
    const double there = f32_bound(kChunk + kKeys, 8), back = f32_bound(kChunk + kKeys, 16);
    const Named names[] = {{"h", there},          {"m", there},          {"den", there},
                           {"gradient dq", back}, {"gradient dk", back}, {"gradient dv", back},
                           {"gradient di", back}, {"gradient df", back}};
    return check_kernel("mLSTM", names,
                        [this](DType dtype, bool tuned) { return run(dtype, tuned); });
  }

 private:
  static constexpr int64_t kTokens = 448, kHeads = 1, kKeys = 256, kValues = 512, kChunk = 256;

  Tensor keys(DType dtype, std::span<const float> values = {}) {
    return rig_.tensor(dtype, {kTokens, kHeads, kKeys}, values);
  }
  Tensor values(DType dtype, std::span<const float> values = {}) {
    return rig_.tensor(dtype, {kTokens, kHeads, kValues}, values);
  }
  Tensor gates(std::span<const float> values = {}) {
    return rig_.tensor(DType::kF32, {kTokens, kHeads}, values);
  }

  MlstmArgs forward(DType dtype) {
    const int64_t chunks = mlstm_chunks(kTokens, kChunk);
    const int64_t states = dtype == DType::kBF16 ? mlstm_bf16_states(chunks, kHeads, kKeys, kValues)
                                                 : (chunks + 1) * kHeads * kKeys * (kValues + 1);
    MlstmArgs a;
    a.q_TNK = keys(dtype, q_);
    a.k_TNK = keys(dtype, k_);
    a.v_TNU = values(dtype, v_);
    a.i_TN = gates(i_);
    a.f_TN = gates(f_);
    a.h_TNU = values(dtype);
    a.states_CNKU1 = rig_.tensor(dtype, {states});
    a.m_state_CN = rig_.tensor(DType::kF32, {chunks + 1, kHeads});
    a.m_TN = gates();
    a.den_TN = gates();
    a.scratch = rig_.tensor(DType::kF32, {mlstm_scratch(kTokens, kHeads, kKeys, kValues, kChunk)});
    a.chunk = kChunk;
    return a;
  }

  MlstmBackwardArgs backward(const MlstmArgs& a, DType dtype) {
    MlstmBackwardArgs b;
    b.q_TNK = a.q_TNK;
    b.k_TNK = a.k_TNK;
    b.v_TNU = a.v_TNU;
    b.i_TN = a.i_TN;
    b.f_TN = a.f_TN;
    b.h_TNU = a.h_TNU;
    b.states_CNKU1 = a.states_CNKU1;
    b.m_state_CN = a.m_state_CN;
    b.m_TN = a.m_TN;
    b.den_TN = a.den_TN;
    b.dh_TNU = values(dtype, dh_);
    b.dq_TNK = keys(dtype);
    b.dk_TNK = keys(dtype);
    b.dv_TNU = values(dtype);
    b.di_TN = gates();
    b.df_TN = gates();
    b.scratch =
        rig_.tensor(DType::kF32, {mlstm_backward_scratch(kTokens, kHeads, kKeys, kValues, kChunk)});
    b.chunk = kChunk;
    return b;
  }

  Result<Results> run(DType dtype, bool tuned) {
    rig_.reset();
    const MlstmArgs a = forward(dtype);
    const MlstmBackwardArgs b = backward(a, dtype);
    const MlstmForm form = tuned ? MlstmForm::kAuto : MlstmForm::kSimple;
    SWAX_TRY(rig_.upload());
    SWAX_TRY(launch_mlstm(raw(rig_.stream()), a, form));
    SWAX_TRY(launch_mlstm_backward(raw(rig_.stream()), b, form));
    SWAX_TRY(rig_.download());
    return Results{rig_.values(a.h_TNU),  rig_.values(a.m_TN),   rig_.values(a.den_TN),
                   rig_.values(b.dq_TNK), rig_.values(b.dk_TNK), rig_.values(b.dv_TNU),
                   rig_.values(b.di_TN),  rig_.values(b.df_TN)};
  }

  SelfTestRig& rig_;
  std::vector<float> q_ = normals("q", kTokens* kHeads* kKeys);
  std::vector<float> k_ = normals("k", kTokens* kHeads* kKeys);
  std::vector<float> v_ = normals("v", kTokens* kHeads* kValues);
  std::vector<float> dh_ = normals("dh", kTokens* kHeads* kValues);
  std::vector<float> i_ = normals("i", kTokens* kHeads);
  std::vector<float> f_ = normals("f", kTokens* kHeads, 1.0F);
};

// The shape of a layer of the 1.4B preset; groups of rows and a short one.
class NormGatesCheck {
 public:
  NormGatesCheck(Backend& backend, SelfTestRig& rig) : backend_(backend), rig_(rig) {
    for (float& w : weights_) w = round_to_bf16(w / 64.0F);
  }

  Status check() {
    const double there = f32_bound(kDim, 3), back = f32_bound(kTokens + kDim, 9);
    const Named names[] = {{"y", there},           {"i", there},           {"f", there},
                           {"gradient dx", back},  {"gradient dw", back},  {"gradient dwi", back},
                           {"gradient dwf", back}, {"gradient dbi", back}, {"gradient dbf", back}};
    return check_kernel("norm and gates", names,
                        [this](DType dtype, bool tuned) { return run(dtype, tuned); });
  }

 private:
  static constexpr int64_t kTokens = 141, kDim = 2048, kHeads = 4;
  static constexpr float kCap = 15.0F;

  Tensor rows(DType dtype, std::span<const float> values = {}) {
    return rig_.tensor(dtype, {kTokens, kDim}, values);
  }
  Tensor gates(std::span<const float> values = {}) {
    return rig_.tensor(DType::kF32, {kTokens, kHeads}, values);
  }
  Tensor sums(std::initializer_list<int64_t> dims) { return rig_.tensor(DType::kF32, dims); }

  Result<Results> run(DType dtype, bool tuned) {
    rig_.reset();
    RmsNormGatesArgs a;
    a.norm = {rows(dtype, x_), rig_.tensor(dtype, {kDim}, w_), rows(dtype), sums({kTokens}), 1e-6F};
    const Tensor weights = rig_.tensor(dtype, {2 * kHeads, kDim}, weights_);
    const Tensor bias = rig_.tensor(dtype, {kHeads}, bias_);
    a.gates = {a.norm.y_TD,
               weights.rows(0, kHeads),
               weights.rows(kHeads, kHeads),
               bias,
               bias,
               gates(),
               gates(),
               kCap};
    RmsNormGatesBackwardArgs b;
    b.gates = {a.norm.y_TD,
               a.gates.wi_ND,
               a.gates.wf_ND,
               a.gates.i_TN,
               a.gates.f_TN,
               gates(di_),
               gates(df_),
               rows(dtype, dy_),
               sums({kHeads, kDim}),
               sums({kHeads, kDim}),
               sums({kHeads}),
               sums({kHeads}),
               kCap};
    b.norm = {a.norm.x_TD,
              a.norm.w_D,
              a.norm.rstd_T,
              b.gates.dx_TD,
              rows(dtype, x_),
              sums({kDim}),
              sums({rms_norm_backward_scratch(kTokens, kDim)}),
              true};
    SWAX_TRY(rig_.upload());
    Stream& s = rig_.stream();
    if (tuned) {
      SWAX_TRY(backend_.rms_norm_gates(s, a));
      SWAX_TRY(backend_.rms_norm_gates_backward(s, b));
    } else {
      SWAX_TRY(backend_.rms_norm(s, a.norm));
      SWAX_TRY(backend_.mlstm_gates(s, a.gates));
      SWAX_TRY(backend_.mlstm_gates_backward(s, b.gates));
      SWAX_TRY(backend_.rms_norm_backward(s, b.norm));
    }
    SWAX_TRY(rig_.download());
    return Results{
        rig_.values(a.norm.y_TD),    rig_.values(a.gates.i_TN),  rig_.values(a.gates.f_TN),
        rig_.values(b.norm.dx_TD),   rig_.values(b.norm.dw_D),   rig_.values(b.gates.dwi_ND),
        rig_.values(b.gates.dwf_ND), rig_.values(b.gates.dbi_N), rig_.values(b.gates.dbf_N)};
  }

  Backend& backend_;
  SelfTestRig& rig_;
  std::vector<float> x_ = normals("x", kTokens* kDim);
  std::vector<float> w_ = normals("w", kDim, 1.0F);
  std::vector<float> dy_ = normals("dy", kTokens* kDim);
  std::vector<float> weights_ = normals("wi, wf", 2 * kHeads * kDim);
  std::vector<float> bias_ = normals("b", kHeads);
  std::vector<float> di_ = normals("di", kTokens* kHeads);
  std::vector<float> df_ = normals("df", kTokens* kHeads);
};

}  // namespace

Status check_result(std::string_view kernel, std::string_view result, std::span<const float> tuned,
                    std::span<const float> simple, std::span<const float> exact,
                    double exact_bound) {
  SWAX_CHECK(tuned.size() == exact.size() && simple.size() == exact.size());
  const double error = difference(tuned, exact), reference = difference(simple, exact);
  const double bound = 2.0 * reference + 3.0 * exact_bound + std::ldexp(1.0, -26);
  if (error <= bound) return ok();  // false for NaN on either side
  return internal_error("self test: " + std::string(kernel) + ", " + std::string(result) +
                        ": relative error " + to_text(error) + ", the simple form has " +
                        to_text(reference) + ", at most " + to_text(bound) +
                        " is right: do not use this GPU with this driver and build");
}

Status self_test(Backend& backend) {
  SWAX_ASSIGN(SelfTestRig rig, SelfTestRig::create(backend));
  SWAX_TRY(check_swa(rig));
  SWAX_TRY(MlstmCheck(rig).check());
  return NormGatesCheck(backend, rig).check();
}

}  // namespace swax::cuda
