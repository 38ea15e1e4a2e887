#include "tests/kernels/staging_backend.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "proto/base/text.h"

namespace swax::test {
namespace {

constexpr int64_t kBand = 4096;
constexpr int64_t kAlign = 256;

// A run of host bytes and its copy: [band][payload at the host's place inside 256 bytes][band].
struct Piece {
  char* begin = nullptr;
  char* end = nullptr;
  std::vector<char> host;  // the whole copy
  Buffer device;

  int64_t offset() const {
    return kBand + static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kAlign);
  }
  size_t bytes() const { return static_cast<size_t>(end - begin); }
  Tensor host_view() {
    return Tensor::of(host.data(), DType::kU8, {static_cast<int64_t>(host.size())});
  }
  Tensor device_view() {
    return Tensor::of(device.data(), DType::kU8, {static_cast<int64_t>(host.size())});
  }
};

std::pair<char*, char*> extent(const Tensor& t) {
  const int64_t last = t.rank > 1 ? (t.dims[0] - 1) * t.row_stride + t.row_elements() : t.dims[0];
  char* begin = static_cast<char*>(t.data);
  return {begin, begin + last * dtype_bytes(t.dtype)};
}

std::vector<Piece> merged(std::vector<std::pair<char*, char*>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Piece> pieces;
  for (const auto& [begin, end] : ranges) {
    if (!pieces.empty() && begin < pieces.back().end) {
      pieces.back().end = std::max(pieces.back().end, end);
      continue;
    }
    pieces.emplace_back();
    pieces.back().begin = begin;
    pieces.back().end = end;
  }
  return pieces;
}

Status upload(Backend& backend, Stream& s, Piece& p) {
  p.host.assign(static_cast<size_t>(2 * kBand + kAlign) + p.bytes(), '\xff');
  std::memcpy(p.host.data() + p.offset(), p.begin, p.bytes());
  SWAX_ASSIGN(p.device, backend.allocate(static_cast<int64_t>(p.host.size()), MemoryKind::kDevice));
  return backend.copy(s, p.device_view(), p.host_view());
}

Status download(Backend& backend, Stream& s, const char* op, Piece& p) {
  SWAX_TRY(backend.copy(s, p.host_view(), p.device_view()));
  SWAX_TRY(backend.sync(s));
  const int64_t end = p.offset() + static_cast<int64_t>(p.bytes());
  for (int64_t i = 0; i < static_cast<int64_t>(p.host.size()); ++i) {
    if ((i < p.offset() || i >= end) && p.host[static_cast<size_t>(i)] != '\xff') {
      return internal_error(std::string(op) + ": wrote at byte " + to_text(i - p.offset()) +
                            " of a tensor of " + to_text(static_cast<int64_t>(p.bytes())));
    }
  }
  std::memcpy(p.begin, p.host.data() + p.offset(), p.bytes());
  return ok();
}

}  // namespace

bool StagingBackend::on_device(const void* data) const {
  const char* p = static_cast<const char*>(data);
  return std::any_of(device_.begin(), device_.end(),
                     [p](const auto& range) { return p >= range.first && p < range.second; });
}

Result<Buffer> StagingBackend::allocate(int64_t bytes, MemoryKind kind) {
  SWAX_ASSIGN(Buffer buffer, inner().allocate(bytes, kind));
  if (kind == MemoryKind::kDevice) {
    const char* begin = static_cast<const char*>(buffer.data());
    device_.emplace_back(begin, begin + bytes);
  }
  return buffer;
}

template <typename Scalars, typename Call>
Status StagingBackend::staged(Stream& s, const char* op, std::initializer_list<Tensor*> tensors,
                              Scalars** scalars, Call call) {
  std::vector<std::pair<char*, char*>> ranges;
  for (const Tensor* t : tensors) {
    if (t->empty() || t->data == nullptr || on_device(t->data)) continue;
    ranges.push_back(extent(*t));
  }
  char* scalar_bytes = nullptr;
  if (scalars != nullptr && *scalars != nullptr) {
    scalar_bytes = const_cast<char*>(reinterpret_cast<const char*>(*scalars));
    ranges.emplace_back(scalar_bytes, scalar_bytes + sizeof(StepScalars));
  }
  std::vector<Piece> pieces = merged(std::move(ranges));
  for (Piece& p : pieces) SWAX_TRY(upload(inner(), s, p));
  const auto moved = [&](char* host) -> char* {
    for (Piece& p : pieces) {
      if (host >= p.begin && host < p.end) {
        return static_cast<char*>(p.device.data()) + p.offset() + (host - p.begin);
      }
    }
    return host;
  };
  for (Tensor* t : tensors) {
    if (!t->empty() && t->data != nullptr) t->data = moved(static_cast<char*>(t->data));
  }
  if (scalar_bytes != nullptr) *scalars = reinterpret_cast<Scalars*>(moved(scalar_bytes));
  SWAX_TRY(call());
  for (Piece& p : pieces) SWAX_TRY(download(inner(), s, op, p));
  return inner().sync(s);
}

// Each op: a copy of the arguments with every tensor of it named once.
#define SWAX_STAGE(name, Args, scalars, ...)                                             \
  Status StagingBackend::name(Stream& s, const Args& args) {                             \
    Args a = args;                                                                       \
    return staged(s, #name, {__VA_ARGS__}, scalars, [&] { return inner().name(s, a); }); \
  }
#define SWAX_NONE static_cast<StepScalars**>(nullptr)

SWAX_STAGE(fill, FillArgs, SWAX_NONE, &a.x)
SWAX_STAGE(add, AddArgs, SWAX_NONE, &a.a, &a.b, &a.out)
SWAX_STAGE(cast, CastArgs, SWAX_NONE, &a.from, &a.to)
SWAX_STAGE(digest, DigestArgs, SWAX_NONE, &a.x, &a.sums)
SWAX_STAGE(gemm, GemmArgs, SWAX_NONE, &a.a, &a.b, &a.c, &a.addend)
SWAX_STAGE(embedding, EmbeddingArgs, SWAX_NONE, &a.tokens_T, &a.weight_VD, &a.y_TD)
SWAX_STAGE(embedding_backward, EmbeddingBackwardArgs, SWAX_NONE, &a.tokens_T, &a.dy_TD,
           &a.dweight_VD)
SWAX_STAGE(rms_norm, RmsNormArgs, SWAX_NONE, &a.x_TD, &a.w_D, &a.y_TD, &a.rstd_T)
SWAX_STAGE(rms_norm_apply, RmsNormApplyArgs, SWAX_NONE, &a.x_TD, &a.w_D, &a.rstd_T, &a.y_TD)
SWAX_STAGE(rms_norm_backward, RmsNormBackwardArgs, SWAX_NONE, &a.x_TD, &a.w_D, &a.rstd_T, &a.dy_TD,
           &a.dx_TD, &a.dw_D, &a.scratch)
SWAX_STAGE(head_norm, HeadNormArgs, SWAX_NONE, &a.h_TNU, &a.o_TNU, &a.w_NU, &a.y_TNU, &a.mean_TN,
           &a.rstd_TN)
SWAX_STAGE(head_norm_backward, HeadNormBackwardArgs, SWAX_NONE, &a.h_TNU, &a.o_TNU, &a.w_NU,
           &a.mean_TN, &a.rstd_TN, &a.dy_TNU, &a.dh_TNU, &a.do_TNU, &a.dw_NU, &a.scratch)
SWAX_STAGE(rope, RopeArgs, SWAX_NONE, &a.x_THE, &a.cos_TP, &a.sin_TP)
SWAX_STAGE(swa, SwaArgs, SWAX_NONE, &a.q_THE, &a.k_TGE, &a.v_TGE, &a.doc_start_T, &a.o_THE,
           &a.lse_TH)
SWAX_STAGE(swa_backward, SwaBackwardArgs, SWAX_NONE, &a.q_THE, &a.k_TGE, &a.v_TGE, &a.doc_start_T,
           &a.o_THE, &a.lse_TH, &a.do_THE, &a.dq_THE, &a.dk_TGE, &a.dv_TGE, &a.scratch, &a.cos_TP,
           &a.sin_TP)
SWAX_STAGE(swa_decode, SwaDecodeArgs, SWAX_NONE, &a.q_HE, &a.k_RGE, &a.v_RGE, &a.o_HE)
SWAX_STAGE(mlstm_gates, MlstmGatesArgs, SWAX_NONE, &a.x_TD, &a.wi_ND, &a.wf_ND, &a.bi_N, &a.bf_N,
           &a.i_TN, &a.f_TN)
SWAX_STAGE(mlstm_gates_backward, MlstmGatesBackwardArgs, SWAX_NONE, &a.x_TD, &a.wi_ND, &a.wf_ND,
           &a.i_TN, &a.f_TN, &a.di_TN, &a.df_TN, &a.dx_TD, &a.dwi_ND, &a.dwf_ND, &a.dbi_N, &a.dbf_N)
SWAX_STAGE(rms_norm_gates, RmsNormGatesArgs, SWAX_NONE, &a.norm.x_TD, &a.norm.w_D, &a.norm.y_TD,
           &a.norm.rstd_T, &a.gates.x_TD, &a.gates.wi_ND, &a.gates.wf_ND, &a.gates.bi_N,
           &a.gates.bf_N, &a.gates.i_TN, &a.gates.f_TN)
SWAX_STAGE(rms_norm_gates_backward, RmsNormGatesBackwardArgs, SWAX_NONE, &a.gates.x_TD,
           &a.gates.wi_ND, &a.gates.wf_ND, &a.gates.i_TN, &a.gates.f_TN, &a.gates.di_TN,
           &a.gates.df_TN, &a.gates.dx_TD, &a.gates.dwi_ND, &a.gates.dwf_ND, &a.gates.dbi_N,
           &a.gates.dbf_N, &a.norm.x_TD, &a.norm.w_D, &a.norm.rstd_T, &a.norm.dy_TD, &a.norm.dx_TD,
           &a.norm.dw_D, &a.norm.scratch)
SWAX_STAGE(mlstm, MlstmArgs, SWAX_NONE, &a.q_TNK, &a.k_TNK, &a.v_TNU, &a.i_TN, &a.f_TN, &a.reset_T,
           &a.h_TNU, &a.states_CNKU1, &a.m_state_CN, &a.m_TN, &a.den_TN, &a.scratch)
SWAX_STAGE(mlstm_backward, MlstmBackwardArgs, SWAX_NONE, &a.q_TNK, &a.k_TNK, &a.v_TNU, &a.i_TN,
           &a.f_TN, &a.reset_T, &a.h_TNU, &a.states_CNKU1, &a.m_state_CN, &a.m_TN, &a.den_TN,
           &a.dh_TNU, &a.dq_TNK, &a.dk_TNK, &a.dv_TNU, &a.di_TN, &a.df_TN, &a.scratch)
SWAX_STAGE(mlstm_step, MlstmStepArgs, SWAX_NONE, &a.q_NK, &a.k_NK, &a.v_NU, &a.i_N, &a.f_N, &a.h_NU,
           &a.state_NKU1, &a.m_N)
SWAX_STAGE(swiglu, SwigluArgs, SWAX_NONE, &a.a_TF, &a.b_TF, &a.s_TF)
SWAX_STAGE(swiglu_backward, SwigluBackwardArgs, SWAX_NONE, &a.a_TF, &a.b_TF, &a.ds_TF, &a.da_TF,
           &a.db_TF)
SWAX_STAGE(cross_entropy, CrossEntropyArgs, &a.scalars, &a.logits_TV, &a.targets_T, &a.loss_sum,
           &a.token_loss_T)
SWAX_STAGE(row_sumsq, RowSumsqArgs, SWAX_NONE, &a.x_S, &a.row_sums_R)
SWAX_STAGE(norm_tree, NormTreeArgs, &a.scalars, &a.gathered_R, &a.order, &a.scratch)
SWAX_STAGE(adamw, AdamWArgs, &a.scalars, &a.master_S, &a.m_S, &a.v_S, &a.grad_S, &a.values_S)

Status StagingBackend::copy(Stream& s, Tensor to, Tensor from) {
  return staged(s, "copy", {&to, &from}, SWAX_NONE, [&] { return inner().copy(s, to, from); });
}

}  // namespace swax::test
