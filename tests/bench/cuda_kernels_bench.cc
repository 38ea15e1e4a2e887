// Times the ops of the CUDA backend at the shapes of the 1.4B model (one sequence of 16,384 tokens,
// bf16); cuda_bench.h says how.
//   cuda_kernels_bench [words of names]
#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/cuda_bench.h"

namespace swax::bench {
namespace {

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

int run(int argc, char** argv) {
  Bench b;
  Result<std::unique_ptr<cuda::CudaBackend>> backend = cuda::CudaBackend::open(0);
  must(backend.status());
  b.backend = std::move(backend).value();
  Result<std::unique_ptr<Stream>> stream = b.backend->make_stream();
  must(stream.status());
  b.stream = std::move(stream).value();
  b.only.assign(argv + 1, argv + argc);
  std::printf("%s\n", b.backend->fingerprint().c_str());
  const int64_t moved = int64_t{2} << 30;
  const double copy = b.copy_seconds(moved);
  std::printf("%-34s %9.1f us %6.0f GB/s\n", "copy of 1 GiB", copy * 1e6,
              static_cast<double>(moved) / copy * 1e-9);
  norms(b, kDim);
  norms(b, 2 * kDim);
  head_norms(b);
  elementwise(b);
  bench_ends(b);
  optimizer(b);
  bench_products(b);
  return 0;
}

}  // namespace
}  // namespace swax::bench

int main(int argc, char** argv) { return swax::bench::run(argc, argv); }
