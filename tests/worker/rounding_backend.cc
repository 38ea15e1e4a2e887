#include "tests/worker/rounding_backend.h"

#include <initializer_list>

#include "tests/support/tensor_check.h"
#include "tests/worker/rounded_cells.h"

namespace swax::test {
namespace {

void round_all(std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors) {
    const int64_t outer = t.rank <= 1 ? 1 : t.dims[0];
    for (int64_t o = 0; o < outer; ++o) {
      float* x = t.f32() + o * t.row_stride;
      for (int64_t i = 0; i < t.elements() / outer; ++i) x[i] = bf16_round(x[i]);
    }
  }
}

}  // namespace

Tensor RoundingBackend::rounded(const Tensor& t, size_t index) {
  std::vector<float>& copy = copies_[index];
  copy.clear();
  const int64_t outer = t.rank <= 1 ? 1 : t.dims[0];
  const int64_t row = t.elements() / outer;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < row; ++i)
      copy.push_back(bf16_round(t.f32()[o * (t.rank <= 1 ? 0 : t.row_stride) + i]));
  Tensor out = t;
  out.data = copy.data();
  out.row_stride = out.row_elements();
  return out;
}

Status RoundingBackend::gemm(Stream& s, const GemmArgs& a) {
  GemmArgs b = a;
  b.a = rounded(a.a, 0);
  b.b = rounded(a.b, 1);
  SWAX_TRY(inner().gemm(s, b));
  if (!a.trans_a) round_all({a.c});  // a weight gradient stays f32
  return ok();
}

Status RoundingBackend::embedding(Stream& s, const EmbeddingArgs& a) {
  SWAX_TRY(inner().embedding(s, a));
  round_all({a.y_TD});
  return ok();
}

Status RoundingBackend::rms_norm(Stream& s, const RmsNormArgs& a) {
  RmsNormArgs b = a;
  b.w_D = rounded(a.w_D, 0);
  SWAX_TRY(inner().rms_norm(s, b));
  round_all({a.y_TD});
  return ok();
}

Status RoundingBackend::rms_norm_apply(Stream& s, const RmsNormApplyArgs& a) {
  RmsNormApplyArgs b = a;
  b.w_D = rounded(a.w_D, 0);
  SWAX_TRY(inner().rms_norm_apply(s, b));
  round_all({a.y_TD});
  return ok();
}

Status RoundingBackend::rms_norm_backward(Stream& s, const RmsNormBackwardArgs& a) {
  RmsNormBackwardArgs b = a;
  b.w_D = rounded(a.w_D, 0);
  SWAX_TRY(inner().rms_norm_backward(s, b));
  round_all({a.dx_TD});
  return ok();
}

Status RoundingBackend::head_norm(Stream& s, const HeadNormArgs& a) {
  HeadNormArgs b = a;
  b.w_NU = rounded(a.w_NU, 0);
  SWAX_TRY(inner().head_norm(s, b));
  round_all({a.y_TNU});
  return ok();
}

Status RoundingBackend::head_norm_backward(Stream& s, const HeadNormBackwardArgs& a) {
  HeadNormBackwardArgs b = a;
  b.w_NU = rounded(a.w_NU, 0);
  SWAX_TRY(inner().head_norm_backward(s, b));
  round_all({a.dh_TNU, a.do_TNU});
  return ok();
}

Status RoundingBackend::rope(Stream& s, const RopeArgs& a) {
  SWAX_TRY(inner().rope(s, a));
  round_all({a.x_THE});
  return ok();
}

Status RoundingBackend::swa(Stream&, const SwaArgs& a) {
  SWAX_TRY(validate(a));
  rounded_swa(a);
  return ok();
}

Status RoundingBackend::swa_backward(Stream&, const SwaBackwardArgs& a) {
  SWAX_TRY(validate(a));
  rounded_swa_backward(a);
  return ok();
}

Status RoundingBackend::mlstm_gates(Stream& s, const MlstmGatesArgs& a) {
  MlstmGatesArgs b = a;
  b.wi_ND = rounded(a.wi_ND, 0);
  b.wf_ND = rounded(a.wf_ND, 1);
  b.bi_N = rounded(a.bi_N, 2);
  b.bf_N = rounded(a.bf_N, 3);
  return inner().mlstm_gates(s, b);
}

Status RoundingBackend::mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) {
  MlstmGatesBackwardArgs b = a;
  b.wi_ND = rounded(a.wi_ND, 0);
  b.wf_ND = rounded(a.wf_ND, 1);
  SWAX_TRY(inner().mlstm_gates_backward(s, b));
  round_all({a.dx_TD});
  return ok();
}

Status RoundingBackend::rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) {
  SWAX_TRY(rms_norm(s, a.norm));
  return mlstm_gates(s, a.gates);
}

Status RoundingBackend::rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) {
  SWAX_TRY(mlstm_gates_backward(s, a.gates));
  return rms_norm_backward(s, a.norm);
}

Status RoundingBackend::mlstm(Stream&, const MlstmArgs& a) {
  SWAX_TRY(validate(a));
  rounded_mlstm(a);
  return ok();
}

Status RoundingBackend::mlstm_backward(Stream&, const MlstmBackwardArgs& a) {
  SWAX_TRY(validate(a));
  rounded_mlstm_backward(a);
  return ok();
}

Status RoundingBackend::swiglu(Stream& s, const SwigluArgs& a) {
  SWAX_TRY(inner().swiglu(s, a));
  round_all({a.s_TF});
  return ok();
}

Status RoundingBackend::swiglu_backward(Stream& s, const SwigluBackwardArgs& a) {
  SWAX_TRY(inner().swiglu_backward(s, a));
  round_all({a.da_TF, a.db_TF});
  return ok();
}

Status RoundingBackend::cross_entropy(Stream& s, const CrossEntropyArgs& a) {
  SWAX_TRY(inner().cross_entropy(s, a));
  if (a.write_gradient) round_all({a.logits_TV});
  return ok();
}

}  // namespace swax::test
