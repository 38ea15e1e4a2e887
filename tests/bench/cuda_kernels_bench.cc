// Times the ops of the CUDA backend at the shapes of the 1.4B model (one sequence of 16,384 tokens,
// bf16): median of CUDA-event times over buffers that rotate, so that a run does not find its own
// data in the cache. Memory-bound ops print GB/s (each input read once, each output written once)
// and the share of the copy rate measured in the same run; products TFLOP/s.
//   cuda_kernels_bench [words of a name]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"

namespace swax {
namespace {

constexpr int64_t kTokens = 16384;
constexpr int64_t kDim = 2048;
constexpr int64_t kInner = 5632;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadSize = 512;
constexpr int64_t kVocab = 50304;
constexpr int64_t kLossRows = 2048;
constexpr int kSets = 3;
constexpr DType kBf16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

void must(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.to_string().c_str());
  std::exit(1);
}

struct Bench {
  std::unique_ptr<cuda::CudaBackend> backend;
  std::unique_ptr<Stream> stream;
  std::vector<Buffer> memory;
  std::string only;
  double copy_rate = 0.0;  // bytes/s
  uint32_t seed = 1;

  // Random values in [-1, 1).
  Tensor make(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t = raw(dtype, dims);
    if (dtype == kBf16 || dtype == kF32) {
      must(cuda::fill_probe(cuda::raw(*stream), dtype, t.data, t.elements(), seed++));
    } else {
      cudaMemsetAsync(t.data, 0, static_cast<size_t>(t.bytes()), cuda::raw(*stream));
    }
    return t;
  }
  Tensor raw(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t = Tensor::of(nullptr, dtype, dims);
    Result<Buffer> b = backend->allocate(t.bytes(), MemoryKind::kDevice);
    must(b.status());
    t.data = b->data();
    memory.push_back(std::move(b).value());
    return t;
  }

  // Median seconds of run(set).
  double time(const std::function<Status(int)>& run) {
    constexpr int kWarm = 3;
    constexpr int kRuns = 15;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> ms;
    for (int i = 0; i < kWarm + kRuns; ++i) {
      cudaEventRecord(begin, cuda::raw(*stream));
      must(run(i % kSets));
      cudaEventRecord(end, cuda::raw(*stream));
      cudaEventSynchronize(end);
      float one = 0.0F;
      cudaEventElapsedTime(&one, begin, end);
      if (i >= kWarm) ms.push_back(one);
    }
    must(backend->sync(*stream));
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(ms.begin(), ms.end());
    return static_cast<double>(ms[ms.size() / 2]) * 1e-3;
  }
  bool wanted(const std::string& name) const {
    return only.empty() || name.find(only) != std::string::npos;
  }
  // prepare() makes the buffers and gives the op; they are freed afterwards.
  void bytes(const std::string& name, double moved,
             const std::function<std::function<Status(int)>()>& prepare) {
    if (!wanted(name)) return;
    const double s = time(prepare());
    std::printf("%-34s %9.1f us %8.0f GB/s %6.1f %% of copy\n", name.c_str(), s * 1e6,
                moved / s * 1e-9, moved / s / copy_rate * 100.0);
    std::fflush(stdout);
    memory.clear();
  }
  void flops(const std::string& name, double count,
             const std::function<std::function<Status(int)>()>& prepare) {
    if (!wanted(name)) return;
    const double s = time(prepare());
    std::printf("%-34s %9.1f us %8.1f TFLOP/s\n", name.c_str(), s * 1e6, count / s * 1e-12);
    std::fflush(stdout);
    memory.clear();
  }
};

using Run = std::function<Status(int)>;
// One value of a buffer set.
template <typename Make>
std::vector<decltype(std::declval<Make>()())> sets(Make make) {
  std::vector<decltype(make())> out;
  for (int i = 0; i < kSets; ++i) out.push_back(make());
  return out;
}

void copy_rate(Bench& b) {
  const int64_t n = int64_t{1} << 28;
  const Tensor from = b.make(kF32, {n});
  const Tensor to = b.make(kF32, {n});
  const double s = b.time([&](int) { return b.backend->copy(*b.stream, to, from); });
  b.copy_rate = 2.0 * static_cast<double>(n) * 4.0 / s;
  std::printf("%-34s %9.1f us %8.0f GB/s\n", "copy of 1 GiB", s * 1e6, b.copy_rate * 1e-9);
  b.memory.clear();
}

void norms(Bench& b, int64_t dim) {
  const double row = static_cast<double>(kTokens * dim) * 2.0;
  const std::string at = " D " + std::to_string(dim);
  const auto inputs = [&b, dim] {
    return sets([&] {
      RmsNormBackwardArgs a;
      a.x_TD = b.make(kBf16, {kTokens, dim});
      a.w_D = b.make(kBf16, {dim});
      a.rstd_T = b.make(kF32, {kTokens});
      a.dy_TD = b.make(kBf16, {kTokens, dim});
      a.dx_TD = b.make(kBf16, {kTokens, dim});
      a.dw_D = b.make(kF32, {dim});
      a.scratch = b.make(kF32, {rms_norm_backward_scratch(kTokens, dim)});
      a.accumulate_dx = true;
      return a;
    });
  };
  b.bytes("rms_norm" + at, 2.0 * row, [&]() -> Run {
    return [&b, s = inputs()](int i) {
      const auto& a = s[static_cast<size_t>(i)];
      return b.backend->rms_norm(*b.stream, {a.x_TD, a.w_D, a.dx_TD, a.rstd_T, 1e-6F});
    };
  });
  b.bytes("rms_norm_apply" + at, 2.0 * row, [&]() -> Run {
    return [&b, s = inputs()](int i) {
      const auto& a = s[static_cast<size_t>(i)];
      return b.backend->rms_norm_apply(*b.stream, {a.x_TD, a.w_D, a.rstd_T, a.dx_TD});
    };
  });
  b.bytes("rms_norm_backward +=" + at, 4.0 * row, [&]() -> Run {
    return [&b, s = inputs()](int i) {
      return b.backend->rms_norm_backward(*b.stream, s[static_cast<size_t>(i)]);
    };
  });
}

void head_norms(Bench& b) {
  const double row = static_cast<double>(kTokens * kHeads * kHeadSize) * 2.0;
  const auto inputs = [&b] {
    return sets([&] {
      const auto value = [&] { return b.make(kBf16, {kTokens, kHeads, kHeadSize}); };
      HeadNormBackwardArgs a;
      a.h_TNU = value();
      a.o_TNU = value();
      a.w_NU = b.make(kBf16, {kHeads * kHeadSize});
      a.mean_TN = b.make(kF32, {kTokens, kHeads});
      a.rstd_TN = b.make(kF32, {kTokens, kHeads});
      a.dy_TNU = value();
      a.dh_TNU = value();
      a.do_TNU = value();
      a.dw_NU = b.make(kF32, {kHeads * kHeadSize});
      a.scratch = b.make(kF32, {rms_norm_backward_scratch(kTokens, kHeads * kHeadSize)});
      return a;
    });
  };
  b.bytes("head_norm", 3.0 * row, [&]() -> Run {
    return [&b, s = inputs()](int i) {
      const auto& x = s[static_cast<size_t>(i)];
      HeadNormArgs a{x.h_TNU, x.o_TNU, x.w_NU, x.dh_TNU, x.mean_TN, x.rstd_TN, 1e-6F};
      return b.backend->head_norm(*b.stream, a);
    };
  });
  b.bytes("head_norm_backward", 5.0 * row, [&]() -> Run {
    return [&b, s = inputs()](int i) {
      return b.backend->head_norm_backward(*b.stream, s[static_cast<size_t>(i)]);
    };
  });
}

void elementwise(Bench& b) {
  const double inner = static_cast<double>(kTokens * kInner) * 2.0;
  b.bytes("swiglu", 3.0 * inner, [&]() -> Run {
    return
        [&b, s = sets([&] {
               return SwigluArgs{b.make(kBf16, {kTokens, kInner}), b.make(kBf16, {kTokens, kInner}),
                                 b.make(kBf16, {kTokens, kInner})};
             })](int i) { return b.backend->swiglu(*b.stream, s[static_cast<size_t>(i)]); };
  });
  b.bytes("swiglu_backward", 5.0 * inner, [&]() -> Run {
    return [&b, s = sets([&] {
                  const auto value = [&] { return b.make(kBf16, {kTokens, kInner}); };
                  return SwigluBackwardArgs{value(), value(), value(), value(), value()};
                })](int i) {
      return b.backend->swiglu_backward(*b.stream, s[static_cast<size_t>(i)]);
    };
  });
  const double x = static_cast<double>(kTokens * kDim) * 2.0;
  b.bytes("rope 16 x 128", 2.0 * x + static_cast<double>(kTokens) * 128.0 * 4.0, [&]() -> Run {
    return [&b, s = sets([&] {
                  return RopeArgs{b.make(kBf16, {kTokens, 16, 128}), b.make(kF32, {kTokens, 64}),
                                  b.make(kF32, {kTokens, 64}), false};
                })](int i) { return b.backend->rope(*b.stream, s[static_cast<size_t>(i)]); };
  });
  const int64_t n = int64_t{1} << 26;
  const double wide = static_cast<double>(n) * 4.0;
  b.bytes("add 67M f32", 3.0 * wide, [&]() -> Run {
    return [&b, s = sets([&] {
                  return AddArgs{b.make(kF32, {n}), b.make(kF32, {n}), b.make(kF32, {n})};
                })](int i) { return b.backend->add(*b.stream, s[static_cast<size_t>(i)]); };
  });
  b.bytes("cast 67M f32 to bf16", 1.5 * wide, [&]() -> Run {
    return [&b, s = sets([&] {
                  return CastArgs{b.make(kF32, {n}), b.make(kBf16, {n})};
                })](int i) { return b.backend->cast(*b.stream, s[static_cast<size_t>(i)]); };
  });
  b.bytes("fill 67M f32", wide, [&]() -> Run {
    return [&b, s = sets([&] {
                  return FillArgs{b.make(kF32, {n}), 0.0F};
                })](int i) { return b.backend->fill(*b.stream, s[static_cast<size_t>(i)]); };
  });
  b.bytes("digest 67M f32", wide, [&]() -> Run {
    return [&b, s = sets([&] {
                  return DigestArgs{b.make(kF32, {n}), 7, 0, b.make(DType::kI64, {2})};
                })](int i) { return b.backend->digest(*b.stream, s[static_cast<size_t>(i)]); };
  });
}

void ends(Bench& b) {
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
  for (const float cap : {0.0F, 30.0F}) {
    const std::string name = std::string("cross_entropy 2048 rows") + (cap > 0.0F ? " cap" : "");
    b.bytes(name, static_cast<double>(kLossRows * kVocab) * 4.0, [&]() -> Run {
      StepScalars host;
      host.inv_targets = 1e-4F;
      const Tensor scalars = b.raw(DType::kU8, {static_cast<int64_t>(sizeof(StepScalars))});
      cudaMemcpy(scalars.data, &host, sizeof(host), cudaMemcpyHostToDevice);
      return [&b, cap, s = sets([&] {
                         CrossEntropyArgs a;
                         a.logits_TV = b.make(kBf16, {kLossRows, kVocab});
                         a.targets_T = tokens().rows(0, kLossRows);
                         a.loss_sum = b.make(DType::kF64, {1});
                         a.scalars = static_cast<const StepScalars*>(scalars.data);
                         a.cap = cap;
                         a.write_gradient = true;
                         return a;
                       })](int i) {
        return b.backend->cross_entropy(*b.stream, s[static_cast<size_t>(i)]);
      };
    });
  }
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

void optimizer(Bench& b) {
  const int64_t rows = 200000;
  const int64_t n = rows * kDim;
  const double bytes = static_cast<double>(n) * 4.0;
  static const std::vector<RowSegment> row_segments = {{0, rows, kDim, 0}};
  static const std::vector<DecaySegment> decay_segments = {{0, n, true}};
  b.bytes("row_sumsq 410M", bytes, [&]() -> Run {
    const Tensor x = b.make(kF32, {n});
    const Tensor sums = b.make(DType::kF64, {rows});
    return [&b, x, sums](int) { return b.backend->row_sumsq(*b.stream, {x, row_segments, sums}); };
  });
  b.bytes("norm_tree 200k rows", static_cast<double>(rows) * 16.0, [&]() -> Run {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < rows; ++i) order.push_back(rows - 1 - i);
    const Tensor device_order = b.raw(DType::kI64, {rows});
    cudaMemcpy(device_order.data, order.data(), order.size() * 8, cudaMemcpyHostToDevice);
    const Tensor gathered = b.make(DType::kF64, {rows});
    const Tensor scratch = b.make(DType::kF64, {rows});
    const Tensor scalars = b.make(DType::kU8, {static_cast<int64_t>(sizeof(StepScalars))});
    return [&b, device_order, gathered, scratch, scalars](int) {
      return b.backend->norm_tree(
          *b.stream, {gathered, device_order, scratch, static_cast<StepScalars*>(scalars.data)});
    };
  });
  b.bytes("adamw 410M", 7.0 * bytes, [&]() -> Run {
    StepScalars host;
    host.lr = 1e-5F;
    host.bias1 = 0.5F;
    host.bias2 = 0.5F;
    const Tensor scalars = b.raw(DType::kU8, {static_cast<int64_t>(sizeof(StepScalars))});
    cudaMemcpy(scalars.data, &host, sizeof(host), cudaMemcpyHostToDevice);
    AdamWArgs a;
    a.master_S = b.make(kF32, {n});
    a.m_S = b.make(kF32, {n});
    a.v_S = b.make(kF32, {n});
    a.grad_S = b.make(kF32, {n});
    must(b.backend->fill(*b.stream, {a.v_S, 0.25F}));
    a.segments = decay_segments;
    a.scalars = static_cast<const StepScalars*>(scalars.data);
    a.beta1 = 0.9F;
    a.beta2 = 0.95F;
    a.eps = 1e-8F;
    return [&b, a](int) { return b.backend->adamw(*b.stream, a); };
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
      {"gemm head 2048", kLossRows, kVocab, kDim, false, true, false, kBf16},
      {"gemm head dx 2048", kLossRows, kDim, kVocab, false, false, false, kBf16},
      {"gemm head dW 2048 f32 +=", kVocab, kDim, kLossRows, true, false, true, kF32},
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
  if (b.wanted("gemm")) std::printf("%s", b.backend->gemm_choices().c_str());
}

int run(int argc, char** argv) {
  Bench b;
  Result<std::unique_ptr<cuda::CudaBackend>> backend = cuda::CudaBackend::open(0);
  must(backend.status());
  b.backend = std::move(backend).value();
  Result<std::unique_ptr<Stream>> stream = b.backend->make_stream();
  must(stream.status());
  b.stream = std::move(stream).value();
  if (argc > 1) b.only = argv[1];
  std::printf("%s\n", b.backend->fingerprint().c_str());
  copy_rate(b);
  norms(b, kDim);
  norms(b, 2 * kDim);
  head_norms(b);
  elementwise(b);
  ends(b);
  optimizer(b);
  products(b);
  return 0;
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) { return swax::run(argc, argv); }
