#include "kernels/call.h"

#include <bit>
#include <type_traits>

namespace swax {
namespace {

using Words = std::vector<uint64_t>;

void put(Words& w, const Tensor& t) {
  const auto& [data, dtype, rank, dims, row_stride] = t;
  w.push_back(reinterpret_cast<uint64_t>(data));
  w.push_back(static_cast<uint64_t>(dtype) << 32 | static_cast<uint32_t>(rank));
  for (int i = 0; i < rank; ++i) w.push_back(static_cast<uint64_t>(dims[i]));
  w.push_back(static_cast<uint64_t>(row_stride));
}
void put(Words& w, const StepScalars* p) { w.push_back(reinterpret_cast<uint64_t>(p)); }
void put(Words& w, float x) { w.push_back(std::bit_cast<uint32_t>(x)); }
void put(Words& w, int64_t x) { w.push_back(static_cast<uint64_t>(x)); }
void put(Words& w, bool x) { w.push_back(x ? 1 : 0); }

template <typename... Fields>
void put_all(Words& w, const Fields&... fields) {
  (put(w, fields), ...);
}

// A binding names every member: an op that gets one more does not compile until it stands here.
void put_members(Words& w, const CopyArgs& args) {
  const auto& [a, b] = args;
  put_all(w, a, b);
}
void put_members(Words& w, const FillArgs& args) {
  const auto& [a, b] = args;
  put_all(w, a, b);
}
void put_members(Words& w, const AddArgs& args) {
  const auto& [a, b, c] = args;
  put_all(w, a, b, c);
}
void put_members(Words& w, const CastArgs& args) {
  const auto& [a, b] = args;
  put_all(w, a, b);
}
void put_members(Words& w, const GemmArgs& args) {
  const auto& [a, b, c, d, e, f, g] = args;
  put_all(w, a, b, c, d, e, f, g);
}
void put_members(Words& w, const EmbeddingArgs& args) {
  const auto& [a, b, c] = args;
  put_all(w, a, b, c);
}
void put_members(Words& w, const EmbeddingBackwardArgs& args) {
  const auto& [a, b, c] = args;
  put_all(w, a, b, c);
}
void put_members(Words& w, const RmsNormArgs& args) {
  const auto& [a, b, c, d, e] = args;
  put_all(w, a, b, c, d, e);
}
void put_members(Words& w, const RmsNormApplyArgs& args) {
  const auto& [a, b, c, d] = args;
  put_all(w, a, b, c, d);
}
void put_members(Words& w, const RmsNormBackwardArgs& args) {
  const auto& [a, b, c, d, e, f, g, h] = args;
  put_all(w, a, b, c, d, e, f, g, h);
}
void put_members(Words& w, const HeadNormArgs& args) {
  const auto& [a, b, c, d, e, f, g] = args;
  put_all(w, a, b, c, d, e, f, g);
}
void put_members(Words& w, const HeadNormBackwardArgs& args) {
  const auto& [a, b, c, d, e, f, g, h, i, j] = args;
  put_all(w, a, b, c, d, e, f, g, h, i, j);
}
void put_members(Words& w, const RopeArgs& args) {
  const auto& [a, b, c, d] = args;
  put_all(w, a, b, c, d);
}
void put_members(Words& w, const SwaArgs& args) {
  const auto& [a, b, c, d, e, f, g, h] = args;
  put_all(w, a, b, c, d, e, f, g, h);
}
void put_members(Words& w, const SwaBackwardArgs& args) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = args;
  put_all(w, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
}
void put_members(Words& w, const MlstmGatesArgs& args) {
  const auto& [a, b, c, d, e, f, g, h] = args;
  put_all(w, a, b, c, d, e, f, g, h);
}
void put_members(Words& w, const MlstmGatesBackwardArgs& args) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = args;
  put_all(w, a, b, c, d, e, f, g, h, i, j, k, l, m);
}
void put_members(Words& w, const RmsNormGatesArgs& args) {
  const auto& [a, b] = args;
  put_members(w, a);
  put_members(w, b);
}
void put_members(Words& w, const RmsNormGatesBackwardArgs& args) {
  const auto& [a, b] = args;
  put_members(w, a);
  put_members(w, b);
}
void put_members(Words& w, const MlstmArgs& args) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = args;
  put_all(w, a, b, c, d, e, f, g, h, i, j, k, l, m, n);
}
void put_members(Words& w, const MlstmBackwardArgs& args) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s] = args;
  put_all(w, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s);
}
void put_members(Words& w, const SwigluArgs& args) {
  const auto& [a, b, c] = args;
  put_all(w, a, b, c);
}
void put_members(Words& w, const SwigluBackwardArgs& args) {
  const auto& [a, b, c, d, e] = args;
  put_all(w, a, b, c, d, e);
}
void put_members(Words& w, const CrossEntropyArgs& args) {
  const auto& [a, b, c, d, e, f, g] = args;
  put_all(w, a, b, c, d, e, f, g);
}

struct Maker {
  Backend& backend;
  Stream& s;
  Status operator()(const CopyArgs& a) const { return backend.copy(s, a.to, a.from); }
  Status operator()(const FillArgs& a) const { return backend.fill(s, a); }
  Status operator()(const AddArgs& a) const { return backend.add(s, a); }
  Status operator()(const CastArgs& a) const { return backend.cast(s, a); }
  Status operator()(const GemmArgs& a) const { return backend.gemm(s, a); }
  Status operator()(const EmbeddingArgs& a) const { return backend.embedding(s, a); }
  Status operator()(const EmbeddingBackwardArgs& a) const {
    return backend.embedding_backward(s, a);
  }
  Status operator()(const RmsNormArgs& a) const { return backend.rms_norm(s, a); }
  Status operator()(const RmsNormApplyArgs& a) const { return backend.rms_norm_apply(s, a); }
  Status operator()(const RmsNormBackwardArgs& a) const { return backend.rms_norm_backward(s, a); }
  Status operator()(const HeadNormArgs& a) const { return backend.head_norm(s, a); }
  Status operator()(const HeadNormBackwardArgs& a) const {
    return backend.head_norm_backward(s, a);
  }
  Status operator()(const RopeArgs& a) const { return backend.rope(s, a); }
  Status operator()(const SwaArgs& a) const { return backend.swa(s, a); }
  Status operator()(const SwaBackwardArgs& a) const { return backend.swa_backward(s, a); }
  Status operator()(const MlstmGatesArgs& a) const { return backend.mlstm_gates(s, a); }
  Status operator()(const MlstmGatesBackwardArgs& a) const {
    return backend.mlstm_gates_backward(s, a);
  }
  Status operator()(const RmsNormGatesArgs& a) const { return backend.rms_norm_gates(s, a); }
  Status operator()(const RmsNormGatesBackwardArgs& a) const {
    return backend.rms_norm_gates_backward(s, a);
  }
  Status operator()(const MlstmArgs& a) const { return backend.mlstm(s, a); }
  Status operator()(const MlstmBackwardArgs& a) const { return backend.mlstm_backward(s, a); }
  Status operator()(const SwigluArgs& a) const { return backend.swiglu(s, a); }
  Status operator()(const SwigluBackwardArgs& a) const { return backend.swiglu_backward(s, a); }
  Status operator()(const CrossEntropyArgs& a) const { return backend.cross_entropy(s, a); }
};

}  // namespace

Status make_call(Backend& backend, Stream& stream, const Call& call) {
  return std::visit(Maker{backend, stream}, call);
}

void append_words(const Call& call, std::vector<uint64_t>& words) {
  words.push_back(call.index());
  std::visit([&](const auto& args) { put_members(words, args); }, call);
}

}  // namespace swax
