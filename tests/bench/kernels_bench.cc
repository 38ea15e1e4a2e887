// Throughput of each CPU op at shapes like those of small presets, on one compute thread.
//   kernels_bench [--benchmark_filter=swa] ; columns: GFLOP/s for products, GB/s for the rest
// (bytes read and written once).
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "proto/base/check.h"
#include "proto/base/rng.h"

namespace swax {
namespace {

constexpr uint64_t kSeed = 1;

// A backend and the buffers of one benchmark.
class Bench {
 public:
  explicit Bench(bool plain = false) {
    BackendOptions options;
    options.plain_gemm = plain;
    Result<std::unique_ptr<Backend>> backend = open_backend(options);
    SWAX_CHECK(backend.ok());
    backend_ = std::move(backend).value();
    Result<std::unique_ptr<Stream>> stream = backend_->make_stream();
    SWAX_CHECK(stream.ok());
    stream_ = std::move(stream).value();
  }
  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  // Normal values around `mean`.
  Tensor normal(std::initializer_list<int64_t> dims, float mean = 0.0F, float spread = 1.0F) {
    Tensor t = empty(DType::kF32, dims);
    for (int64_t i = 0; i < t.elements(); ++i) {
      t.f32()[i] = mean + spread * normal_at(kSeed, buffers_.size(), static_cast<uint64_t>(i));
    }
    return t;
  }
  Tensor empty(DType dtype, std::initializer_list<int64_t> dims) {
    const Tensor shape = Tensor::of(nullptr, dtype, dims);
    Result<Buffer> b = backend_->allocate(shape.bytes(), MemoryKind::kDevice);
    SWAX_CHECK(b.ok());
    buffers_.push_back(std::move(b).value());
    return Tensor::of(buffers_.back().data(), dtype, dims);
  }
  Tensor empty(std::initializer_list<int64_t> dims) { return empty(DType::kF32, dims); }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
};

void rate(benchmark::State& state, const char* unit, double per_call) {
  state.counters[unit] =
      benchmark::Counter(per_call * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

template <typename Call>
void measure(benchmark::State& state, Call call) {
  SWAX_CHECK(call().ok());
  for (auto _ : state) benchmark::DoNotOptimize(call().ok());
}

void gemm(benchmark::State& state, bool trans_a, bool trans_b, bool plain) {
  Bench b(plain);
  const int64_t m = state.range(0);
  const int64_t n = state.range(1);
  const int64_t k = state.range(2);
  GemmArgs a;
  a.a = trans_a ? b.normal({k, m}) : b.normal({m, k});
  a.b = trans_b ? b.normal({n, k}) : b.normal({k, n});
  a.c = b.empty({m, n});
  a.trans_a = trans_a;
  a.trans_b = trans_b;
  measure(state, [&] { return b.backend().gemm(b.stream(), a); });
  rate(state, "GFLOP/s", cost(a));
}
void gemm_shapes(benchmark::internal::Benchmark* b) {
  b->Args({256, 128, 128})->Args({256, 512, 128})->Args({256, 256, 256})->Args({512, 768, 256});
}
BENCHMARK_CAPTURE(gemm, forward, false, true, false)->Apply(gemm_shapes);
BENCHMARK_CAPTURE(gemm, data_gradient, false, false, false)->Apply(gemm_shapes);
BENCHMARK_CAPTURE(gemm, weight_gradient, true, false, false)->Apply(gemm_shapes);
BENCHMARK_CAPTURE(gemm, plain_forward, false, true, true)->Apply(gemm_shapes);
BENCHMARK_CAPTURE(gemm, plain_data_gradient, false, false, true)->Apply(gemm_shapes);

// T, H, E, window
struct SwaBench {
  explicit SwaBench(const benchmark::State& state, bool plain) : b(plain) {
    const int64_t t = state.range(0);
    const int64_t h = state.range(1);
    const int64_t e = state.range(2);
    a.q_THE = b.normal({t, h, e});
    a.k_TGE = b.normal({t, h, e});
    a.v_TGE = b.normal({t, h, e});
    a.o_THE = b.empty({t, h, e});
    a.lse_TH = b.empty({t, h});
    a.window = state.range(3);
    a.scale = 1.0F / std::sqrt(static_cast<float>(e));
  }
  Bench b;
  SwaArgs a;
};
void swa(benchmark::State& state, bool plain) {
  SwaBench s(state, plain);
  measure(state, [&] { return s.b.backend().swa(s.b.stream(), s.a); });
  rate(state, "GFLOP/s", cost(s.a));
}
void swa_backward(benchmark::State& state, bool plain) {
  SwaBench s(state, plain);
  SWAX_CHECK(s.b.backend().swa(s.b.stream(), s.a).ok());
  const int64_t t = state.range(0);
  const int64_t h = state.range(1);
  const int64_t e = state.range(2);
  SwaBackwardArgs a;
  a.q_THE = s.a.q_THE;
  a.k_TGE = s.a.k_TGE;
  a.v_TGE = s.a.v_TGE;
  a.o_THE = s.a.o_THE;
  a.lse_TH = s.a.lse_TH;
  a.do_THE = s.b.normal({t, h, e});
  a.dq_THE = s.b.empty({t, h, e});
  a.dk_TGE = s.b.empty({t, h, e});
  a.dv_TGE = s.b.empty({t, h, e});
  a.scratch = s.b.empty({swa_backward_scratch(t, h)});
  a.window = s.a.window;
  a.scale = s.a.scale;
  measure(state, [&] { return s.b.backend().swa_backward(s.b.stream(), a); });
  rate(state, "GFLOP/s", cost(a));
}
void swa_shapes(benchmark::internal::Benchmark* b) {
  b->Args({256, 4, 32, 16})->Args({256, 4, 32, 64})->Args({512, 4, 64, 64});
  b->Args({512, 4, 64, 256})->Args({1024, 12, 64, 1024});
}
BENCHMARK_CAPTURE(swa, blas, false)->Apply(swa_shapes);
BENCHMARK_CAPTURE(swa, plain, true)->Apply(swa_shapes);
BENCHMARK_CAPTURE(swa_backward, blas, false)->Apply(swa_shapes);
BENCHMARK_CAPTURE(swa_backward, plain, true)->Apply(swa_shapes);

// T, N, K, U, chunk
struct MlstmBench {
  explicit MlstmBench(const benchmark::State& state, bool plain) : b(plain) {
    const int64_t t = state.range(0);
    const int64_t n = state.range(1);
    const int64_t k = state.range(2);
    const int64_t u = state.range(3);
    const int64_t chunks = mlstm_chunks(t, state.range(4));
    a.q_TNK = b.normal({t, n, k});
    a.k_TNK = b.normal({t, n, k});
    a.v_TNU = b.normal({t, n, u});
    a.i_TN = b.normal({t, n}, -2.0F);
    a.f_TN = b.normal({t, n}, 4.0F);
    a.h_TNU = b.empty({t, n, u});
    a.states_CNKU1 = b.empty({chunks + 1, n, k, u + 1});
    a.m_state_CN = b.empty({chunks + 1, n});
    a.m_TN = b.empty({t, n});
    a.den_TN = b.empty({t, n});
    a.scratch = b.empty({mlstm_scratch(t, n, k, u, state.range(4))});
    a.chunk = state.range(4);
  }
  Bench b;
  MlstmArgs a;
};
void mlstm(benchmark::State& state, bool plain) {
  MlstmBench s(state, plain);
  measure(state, [&] { return s.b.backend().mlstm(s.b.stream(), s.a); });
  rate(state, "GFLOP/s", cost(s.a));
}
void mlstm_backward(benchmark::State& state, bool plain) {
  MlstmBench s(state, plain);
  SWAX_CHECK(s.b.backend().mlstm(s.b.stream(), s.a).ok());
  const int64_t t = state.range(0);
  const int64_t n = state.range(1);
  const int64_t k = state.range(2);
  const int64_t u = state.range(3);
  MlstmBackwardArgs a;
  a.q_TNK = s.a.q_TNK;
  a.k_TNK = s.a.k_TNK;
  a.v_TNU = s.a.v_TNU;
  a.i_TN = s.a.i_TN;
  a.f_TN = s.a.f_TN;
  a.h_TNU = s.a.h_TNU;
  a.states_CNKU1 = s.a.states_CNKU1;
  a.m_state_CN = s.a.m_state_CN;
  a.m_TN = s.a.m_TN;
  a.den_TN = s.a.den_TN;
  a.dh_TNU = s.b.normal({t, n, u});
  a.dq_TNK = s.b.empty({t, n, k});
  a.dk_TNK = s.b.empty({t, n, k});
  a.dv_TNU = s.b.empty({t, n, u});
  a.di_TN = s.b.empty({t, n});
  a.df_TN = s.b.empty({t, n});
  a.scratch = s.b.empty({mlstm_backward_scratch(t, n, k, u, state.range(4))});
  a.chunk = s.a.chunk;
  measure(state, [&] { return s.b.backend().mlstm_backward(s.b.stream(), a); });
  rate(state, "GFLOP/s", cost(a));
}
void mlstm_shapes(benchmark::internal::Benchmark* b) {
  b->Args({256, 1, 64, 128, 32})->Args({256, 2, 64, 128, 32})->Args({512, 2, 128, 256, 32});
  b->Args({512, 2, 64, 128, 64});
}
BENCHMARK_CAPTURE(mlstm, blas, false)->Apply(mlstm_shapes);
BENCHMARK_CAPTURE(mlstm, plain, true)->Apply(mlstm_shapes);
BENCHMARK_CAPTURE(mlstm_backward, blas, false)->Apply(mlstm_shapes);
BENCHMARK_CAPTURE(mlstm_backward, plain, true)->Apply(mlstm_shapes);

// The element-wise rest: T x D (or V).
void rms_norm(benchmark::State& state) {
  Bench b;
  const int64_t t = state.range(0);
  const int64_t d = state.range(1);
  RmsNormArgs a{b.normal({t, d}), b.normal({d}, 1.0F), b.empty({t, d}), b.empty({t}), 1e-6F};
  measure(state, [&] { return b.backend().rms_norm(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(t * d * 8));
}
BENCHMARK(rms_norm)->Args({512, 256});

void rms_norm_backward(benchmark::State& state) {
  Bench b;
  const int64_t t = state.range(0);
  const int64_t d = state.range(1);
  RmsNormBackwardArgs a;
  a.x_TD = b.normal({t, d});
  a.w_D = b.normal({d}, 1.0F);
  a.rstd_T = b.normal({t}, 1.0F, 0.1F);
  a.dy_TD = b.normal({t, d});
  a.dx_TD = b.normal({t, d});
  a.dw_D = b.empty({d});
  a.scratch = b.empty({rms_norm_backward_scratch(t, d)});
  measure(state, [&] { return b.backend().rms_norm_backward(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(t * d * 12));
}
BENCHMARK(rms_norm_backward)->Args({512, 256});

void head_norm(benchmark::State& state) {
  Bench b;
  const int64_t t = state.range(0);
  const int64_t n = 2;
  const int64_t u = state.range(1) / n;
  HeadNormArgs a{b.normal({t, n, u}),
                 b.normal({t, n, u}),
                 b.normal({n * u}, 1.0F),
                 b.empty({t, n, u}),
                 b.empty({t, n}),
                 b.empty({t, n}),
                 1e-6F};
  measure(state, [&] { return b.backend().head_norm(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(t * n * u * 12));
}
BENCHMARK(head_norm)->Args({512, 256});

void rope(benchmark::State& state) {
  Bench b;
  const int64_t t = state.range(0);
  const int64_t e = 64;
  const int64_t h = state.range(1) / e;
  const Tensor cos = b.empty({t, e / 2});
  const Tensor sin = b.empty({t, e / 2});
  for (int64_t i = 0; i < t; ++i) rope_table_row(i, 10000.0, cos, sin, i);
  const RopeArgs a{b.normal({t, h, e}), cos, sin, false};
  measure(state, [&] { return b.backend().rope(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(t * h * e * 8));
}
BENCHMARK(rope)->Args({512, 256});

void swiglu(benchmark::State& state) {
  Bench b;
  const auto dims = {state.range(0), state.range(1)};
  const SwigluArgs a{b.normal(dims), b.normal(dims), b.empty(dims)};
  measure(state, [&] { return b.backend().swiglu(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(a.a_TF.elements() * 12));
}
BENCHMARK(swiglu)->Args({512, 768});

void swiglu_backward(benchmark::State& state) {
  Bench b;
  const auto dims = {state.range(0), state.range(1)};
  const SwigluBackwardArgs a{b.normal(dims), b.normal(dims), b.normal(dims), b.empty(dims),
                             b.empty(dims)};
  measure(state, [&] { return b.backend().swiglu_backward(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(a.a_TF.elements() * 20));
}
BENCHMARK(swiglu_backward)->Args({512, 768});

void mlstm_gates(benchmark::State& state) {
  Bench b;
  const int64_t t = state.range(0);
  const int64_t d = state.range(1);
  const MlstmGatesArgs a{b.normal({t, d}), b.normal({2, d}), b.normal({2, d}), b.normal({2}),
                         b.normal({2}),    b.empty({t, 2}),  b.empty({t, 2}),  15.0F};
  measure(state, [&] { return b.backend().mlstm_gates(b.stream(), a); });
  rate(state, "GFLOP/s", static_cast<double>(t * d * 8));
}
BENCHMARK(mlstm_gates)->Args({512, 256});

void cross_entropy(benchmark::State& state) {
  Bench b;
  const int64_t t = kLossChunk;
  const int64_t v = state.range(0);
  StepScalars scalars;
  scalars.inv_targets = 1.0F / 128.0F;
  CrossEntropyArgs a;
  a.logits_TV = b.normal({t, v});
  a.targets_T = b.empty(DType::kI32, {t});
  for (int64_t i = 0; i < t; ++i) a.targets_T.i32()[i] = static_cast<int32_t>(i % v);
  a.loss_sum = b.empty(DType::kF64, {1});
  a.loss_sum.f64()[0] = 0.0;
  a.scalars = &scalars;
  a.cap = 30.0F;
  a.write_gradient = true;
  measure(state, [&] { return b.backend().cross_entropy(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(t * v * 8));
}
BENCHMARK(cross_entropy)->Arg(288)->Arg(512)->Arg(50304);

void embedding_backward(benchmark::State& state) {
  Bench b;
  const int64_t t = state.range(0);
  const int64_t d = state.range(1);
  EmbeddingBackwardArgs a{b.empty(DType::kI32, {t}), b.normal({t, d}), b.empty({512, d})};
  for (int64_t i = 0; i < t; ++i) a.tokens_T.i32()[i] = static_cast<int32_t>(i * 7 % 512);
  measure(state, [&] { return b.backend().embedding_backward(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>((t + 512) * d * 4));
}
BENCHMARK(embedding_backward)->Args({512, 256});

void adamw(benchmark::State& state) {
  Bench b;
  const int64_t n = state.range(0);
  StepScalars scalars;
  const std::vector<DecaySegment> segments = {{0, n, true}};
  const AdamWArgs a{b.normal({n}), b.normal({n}), b.normal({n}, 4.0F, 0.1F),
                    b.normal({n}), segments,      &scalars,
                    0.9F,          0.95F,         1e-8F};
  measure(state, [&] { return b.backend().adamw(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(n * 28));
}
BENCHMARK(adamw)->Arg(1 << 20);

void row_sumsq(benchmark::State& state) {
  Bench b;
  const int64_t n = state.range(0);
  const std::vector<RowSegment> segments = {{0, n / 256, 256, 0}};
  const RowSumsqArgs a{b.normal({n}), segments, b.empty(DType::kF64, {n / 256})};
  measure(state, [&] { return b.backend().row_sumsq(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(n * 4));
}
BENCHMARK(row_sumsq)->Arg(1 << 20);

void digest(benchmark::State& state) {
  Bench b;
  const DigestArgs a{b.normal({state.range(0)}), 1, 0, b.empty(DType::kI64, {2})};
  measure(state, [&] { return b.backend().digest(b.stream(), a); });
  rate(state, "GB/s", static_cast<double>(state.range(0) * 4));
}
BENCHMARK(digest)->Arg(1 << 20);

}  // namespace
}  // namespace swax

BENCHMARK_MAIN();
