// Embedding, loss, gates and products; see cuda_bench.h.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/bench/cuda_bench.h"

namespace swax::bench {
namespace {

void embeddings(Bench& b) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < kTokens; ++t) {
    // A few frequent tokens and a long tail.
    const int64_t mixed = (t * 2654435761LL) % 1000003;
    ids.push_back(static_cast<int32_t>(t % 4 == 0 ? mixed % 30 : mixed % kVocab));
  }
  const auto tokens = [&] {
    const Tensor t = b.raw(DType::kI32, {kTokens});
    cudaMemcpy(t.data, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice);
    return t;
  };
  const double row = static_cast<double>(kTokens * kDim) * 2.0;
  b.bytes("embedding", 2.0 * row, [&]() -> Run {
    return [&b, s = sets([&] {
                  return EmbeddingArgs{tokens(), b.make(kBf16, {kVocab, kDim}),
                                       b.make(kBf16, {kTokens, kDim})};
                })](int i) { return b.backend->embedding(*b.stream, s[static_cast<size_t>(i)]); };
  });
  b.bytes("embedding_backward", row + static_cast<double>(kVocab * kDim) * 4.0, [&]() -> Run {
    return [&b, s = sets([&] {
                  return EmbeddingBackwardArgs{tokens(), b.make(kBf16, {kTokens, kDim}),
                                               b.make(kF32, {kVocab, kDim})};
                })](int i) {
      return b.backend->embedding_backward(*b.stream, s[static_cast<size_t>(i)]);
    };
  });
}

StepScalars* loss_scalars(Bench& b) {
  StepScalars host;
  host.inv_targets = 1e-4F;
  const Tensor scalars = b.raw(DType::kU8, {static_cast<int64_t>(sizeof(StepScalars))});
  cudaMemcpy(scalars.data, &host, sizeof(host), cudaMemcpyHostToDevice);
  return static_cast<StepScalars*>(scalars.data);
}

// Logits are made anew before each call, which overwrites them: products of 128 uniform numbers,
// so nearly normal, 3.8 wide.
double loss_seconds(Bench& b, int64_t vocab, float cap) {
  const StepScalars* scalars = loss_scalars(b);
  const Tensor x = b.make(kBf16, {kLossRows, 128});
  const Tensor w = b.make(kBf16, {vocab, 128});
  std::vector<CrossEntropyArgs> all(3 * kSets);
  for (CrossEntropyArgs& a : all) {
    a.logits_TV = b.raw(kBf16, {kLossRows, vocab});
    a.targets_T = b.make(DType::kI32, {kLossRows});
    a.loss_sum = b.make(DType::kF64, {1});
    a.scalars = scalars;
    a.cap = cap;
    a.write_gradient = true;
  }
  const auto op = [&](int i) {
    return b.backend->cross_entropy(*b.stream, all[static_cast<size_t>(i)]);
  };
  const double s = b.time(op, static_cast<int>(all.size()), [&](int i) {
    GemmArgs g;
    g.a = x;
    g.b = w;
    g.c = all[static_cast<size_t>(i)].logits_TV;
    g.trans_b = true;
    return b.backend->gemm(*b.stream, g);
  });
  b.clear();
  return s;
}

// Rows of 8 show what the sum of a chunk's losses and two launches cost.
void losses(Bench& b) {
  for (const float cap : {0.0F, 30.0F}) {
    const std::string name = std::string("cross_entropy 8192 rows") + (cap > 0.0F ? " cap" : "");
    if (!b.wanted(name)) continue;
    b.print_bytes(name, static_cast<double>(kLossRows * kVocab) * 4.0,
                  loss_seconds(b, kVocab, cap));
    b.clear();
  }
  const std::string narrow = "cross_entropy 8192 rows of 8";
  if (!b.wanted(narrow)) return;
  std::printf("%-34s %9.1f us\n", narrow.c_str(), loss_seconds(b, 8, 30.0F) * 1e6);
}

void gates(Bench& b) {
  const double row = static_cast<double>(kTokens * kDim) * 2.0;
  b.bytes("mlstm_gates", row, [&]() -> Run {
    return [&b, s = sets([&] {
                  MlstmGatesArgs a;
                  a.x_TD = b.make(kBf16, {kTokens, kDim});
                  a.wi_ND = b.make(kBf16, {kHeads, kDim});
                  a.wf_ND = b.make(kBf16, {kHeads, kDim});
                  a.bi_N = b.make(kBf16, {kHeads});
                  a.bf_N = b.make(kBf16, {kHeads});
                  a.i_TN = b.make(kF32, {kTokens, kHeads});
                  a.f_TN = b.make(kF32, {kTokens, kHeads});
                  a.cap = 15.0F;
                  return a;
                })](int i) { return b.backend->mlstm_gates(*b.stream, s[static_cast<size_t>(i)]); };
  });
  b.bytes("mlstm_gates_backward", 3.0 * row, [&]() -> Run {
    return [&b, s = sets([&] {
                  const auto rows = [&] { return b.make(kF32, {kTokens, kHeads}); };
                  MlstmGatesBackwardArgs a;
                  a.x_TD = b.make(kBf16, {kTokens, kDim});
                  a.wi_ND = b.make(kBf16, {kHeads, kDim});
                  a.wf_ND = b.make(kBf16, {kHeads, kDim});
                  a.i_TN = rows();
                  a.f_TN = rows();
                  a.di_TN = rows();
                  a.df_TN = rows();
                  a.dx_TD = b.make(kBf16, {kTokens, kDim});
                  a.dwi_ND = b.make(kF32, {kHeads, kDim});
                  a.dwf_ND = b.make(kF32, {kHeads, kDim});
                  a.dbi_N = b.make(kF32, {kHeads});
                  a.dbf_N = b.make(kF32, {kHeads});
                  a.cap = 15.0F;
                  return a;
                })](int i) {
      return b.backend->mlstm_gates_backward(*b.stream, s[static_cast<size_t>(i)]);
    };
  });
}

// The norm of an mLSTM layer with its gates. Backward reads x, dy and the residual gradient, and
// writes the last.
void norm_gates(Bench& b, int64_t dim, int64_t heads) {
  const double row = static_cast<double>(kTokens * dim) * 2.0;
  const std::string at = " D " + std::to_string(dim);
  const auto inputs = [&b, dim, heads] {
    return sets([&] {
      const auto rows = [&] { return b.make(kBf16, {kTokens, dim}); };
      const auto gate = [&] { return b.make(kF32, {kTokens, heads}); };
      RmsNormGatesBackwardArgs a;
      a.norm = {rows(),
                b.make(kBf16, {dim}),
                b.make(kF32, {kTokens}),
                rows(),
                rows(),
                b.make(kF32, {dim}),
                b.make(kF32, {rms_norm_backward_scratch(kTokens, dim)}),
                true};
      a.gates = {rows(),
                 b.make(kBf16, {heads, dim}),
                 b.make(kBf16, {heads, dim}),
                 gate(),
                 gate(),
                 gate(),
                 gate(),
                 a.norm.dy_TD,
                 b.make(kF32, {heads, dim}),
                 b.make(kF32, {heads, dim}),
                 b.make(kF32, {heads}),
                 b.make(kF32, {heads}),
                 15.0F};
      return a;
    });
  };
  b.bytes("rms_norm_gates" + at, 2.0 * row, [&]() -> Run {
    return [&b, bias = b.make(kBf16, {heads}), s = inputs()](int i) {
      const auto& [g, n] = s[static_cast<size_t>(i)];
      return b.backend->rms_norm_gates(
          *b.stream, {{n.x_TD, n.w_D, g.x_TD, n.rstd_T, 1e-6F},
                      {g.x_TD, g.wi_ND, g.wf_ND, bias, bias, g.i_TN, g.f_TN, g.cap}});
    };
  });
  b.bytes("rms_norm_gates_backward +=" + at, 4.0 * row, [&]() -> Run {
    return [&b, s = inputs()](int i) {
      return b.backend->rms_norm_gates_backward(*b.stream, s[static_cast<size_t>(i)]);
    };
  });
}

struct Product {
  const char* name;
  int64_t m, n, k;
  bool trans_a, trans_b, accumulate;
  DType out;
};

void products(Bench& b) {
  const int64_t t = kTokens;
  const Product all[] = {
      {"gemm qkv x W^T", t, 3 * kDim, kDim, false, true, false, kBf16},
      {"gemm out +=", t, kDim, kDim, false, true, true, kBf16},
      {"gemm gate x W^T", t, kInner, kDim, false, true, false, kBf16},
      {"gemm down +=", t, kDim, kInner, false, true, true, kBf16},
      {"gemm dx of gate +=", t, kDim, kInner, false, false, true, kBf16},
      {"gemm dx of down", t, kInner, kDim, false, false, false, kBf16},
      {"gemm dW of gate f32", kInner, kDim, t, true, false, false, kF32},
      {"gemm dW of gate f32 +=", kInner, kDim, t, true, false, true, kF32},
      {"gemm dW of qkv f32", 3 * kDim, kDim, t, true, false, false, kF32},
      {"gemm dW of out f32", kDim, kDim, t, true, false, false, kF32},
      {"gemm head chunk", kLossRows, kVocab, kDim, false, true, false, kBf16},
      {"gemm head dx chunk", kLossRows, kDim, kVocab, false, false, false, kBf16},
      {"gemm head dW chunk f32 +=", kVocab, kDim, kLossRows, true, false, true, kF32},
      {"gemm head 128", 128, kVocab, kDim, false, true, false, kBf16},
      {"gemm head dW 128 f32 +=", kVocab, kDim, 128, true, false, true, kF32},
      {"gemm f32 gate", 2048, kInner, kDim, false, true, false, kF32},
  };
  for (const Product& p : all) {
    const bool wide = std::string(p.name) == "gemm f32 gate";
    const DType in = wide ? kF32 : kBf16;
    b.flops(p.name,
            2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k),
            [&]() -> Run {
              GemmArgs a;
              a.a = p.trans_a ? b.make(in, {p.k, p.m}) : b.make(in, {p.m, p.k});
              a.b = p.trans_b ? b.make(in, {p.n, p.k}) : b.make(in, {p.k, p.n});
              a.c = b.make(p.out, {p.m, p.n});
              a.trans_a = p.trans_a;
              a.trans_b = p.trans_b;
              a.accumulate = p.accumulate;
              return [&b, a](int) { return b.backend->gemm(*b.stream, a); };
            });
  }
}

// bf16 in [-1/4, 1/4): with inputs in [-1, 1) and depth 2048 the products are nearly normal, 3.8
// wide. One random block, repeated.
Tensor small_weights(Bench& b, int64_t rows) {
  const Tensor w = b.raw(kBf16, {rows, kDim});
  std::vector<uint16_t> block(static_cast<size_t>(257 * kDim));
  uint32_t state = 1;
  for (uint16_t& x : block) {
    state = state * 1664525U + 1013904223U;
    const float value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-33F;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    x = static_cast<uint16_t>(bits >> 16);
  }
  for (int64_t r = 0; r < rows; r += 257) {
    const size_t bytes = static_cast<size_t>(std::min<int64_t>(257, rows - r) * kDim * 2);
    cudaMemcpy(w.rows(r, 1).data, block.data(), bytes, cudaMemcpyHostToDevice);
  }
  return w;
}

struct HeadBuffers {
  Tensor x, w, dx, dw;
  CrossEntropyArgs loss;  // of a chunk
};

// The head of a step as the trainer has it: logits, loss with cap and gradient, dx, dW added up in
// f32, one chunk of tokens after the other.
Status head_step(Bench& b, const HeadBuffers& h) {
  const int64_t chunk = h.loss.logits_TV.dims[0];
  for (int64_t t = 0; t < kTokens; t += chunk) {
    GemmArgs g;
    g.a = h.x.rows(t, chunk);
    g.b = h.w;
    g.c = h.loss.logits_TV;
    g.trans_b = true;
    SWAX_TRY(b.backend->gemm(*b.stream, g));
    SWAX_TRY(b.backend->cross_entropy(*b.stream, h.loss));
    GemmArgs back;
    back.a = h.loss.logits_TV;
    back.b = h.w;
    back.c = h.dx.rows(t, chunk);
    SWAX_TRY(b.backend->gemm(*b.stream, back));
    GemmArgs weight;
    weight.a = h.loss.logits_TV;
    weight.b = h.x.rows(t, chunk);
    weight.c = h.dw;
    weight.trans_a = true;
    weight.accumulate = t > 0;
    SWAX_TRY(b.backend->gemm(*b.stream, weight));
  }
  return ok();
}

void head_and_loss(Bench& b) {
  const double count = 6.0 * static_cast<double>(kTokens) * static_cast<double>(kVocab * kDim);
  for (const int64_t chunk : {kLossRows, kLossRows / 2, kLossRows / 4}) {
    const std::string name = "head + loss by " + std::to_string(chunk);
    if (!b.wanted(name)) continue;
    HeadBuffers h;
    h.x = b.make(kBf16, {kTokens, kDim});
    h.w = small_weights(b, kVocab);
    h.dx = b.make(kBf16, {kTokens, kDim});
    h.dw = b.make(kF32, {kVocab, kDim});
    h.loss.logits_TV = b.make(kBf16, {chunk, kVocab});
    h.loss.targets_T = b.make(DType::kI32, {chunk});
    h.loss.loss_sum = b.make(DType::kF64, {1});
    h.loss.scalars = loss_scalars(b);
    h.loss.cap = 30.0F;
    h.loss.write_gradient = true;
    const Run run = [&](int) { return head_step(b, h); };
    b.print_flops(name + ", rested", count, b.time_rested(run));
    b.print_flops(name + ", sustained", count, b.time(run));
    b.clear();
  }
}

}  // namespace

void bench_ends(Bench& b) {
  embeddings(b);
  losses(b);
  gates(b);
  norm_gates(b, kDim, kHeads);
  norm_gates(b, 4096, 8);
}

void bench_products(Bench& b) {
  products(b);
  head_and_loss(b);
}

}  // namespace swax::bench
