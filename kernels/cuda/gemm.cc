#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cuda/check.h"
#include "proto/base/text.h"

namespace swax::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr int kTimedRuns = 5;

Status lt_status(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok();
  return internal_error(std::string("gemm: ") + call + ": " + cublasLtGetStatusName(status));
}

cudaDataType_t lt_type(DType t) { return t == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

int64_t alignment(const void* p) {
  const uint64_t bits = reinterpret_cast<uint64_t>(p) | 256U;
  return static_cast<int64_t>(bits & (~bits + 1));
}

// Row-major [rows, cols] with a stride is column-major [cols, rows] with that leading dimension.
Result<cublasLtMatrixLayout_t> layout(DType type, int64_t rows, int64_t cols, int64_t stride) {
  cublasLtMatrixLayout_t out = nullptr;
  SWAX_TRY(lt_status(cublasLtMatrixLayoutCreate(&out, lt_type(type), static_cast<uint64_t>(cols),
                                                static_cast<uint64_t>(rows), stride),
                     "cublasLtMatrixLayoutCreate"));
  return out;
}

// Device memory of a probe, freed at the end of the choice.
class ProbeMemory {
 public:
  ~ProbeMemory() {
    for (void* p : blocks_) cudaFree(p);
  }
  // nullptr when there is none left.
  void* take(int64_t bytes) {
    void* p = nullptr;
    if (cudaMalloc(&p, static_cast<size_t>(bytes)) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    blocks_.push_back(p);
    return p;
  }

 private:
  std::vector<void*> blocks_;
};

class Timer {
 public:
  Timer() {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  void begin(cudaStream_t s) { cudaEventRecord(begin_, s); }
  float end_ms(cudaStream_t s) {
    float ms = 0.0F;
    cudaEventRecord(end_, s);
    cudaEventSynchronize(end_);
    cudaEventElapsedTime(&ms, begin_, end_);
    return ms;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

GemmShape gemm_shape(const GemmArgs& a) {
  const auto stride = [](const Tensor& t) {
    return t.dims[0] > 1 ? t.row_stride : t.row_elements();
  };
  GemmShape s;
  s.m = a.c.dims[0];
  s.n = a.c.dims[1];
  s.k = a.trans_a ? a.a.dims[0] : a.a.dims[1];
  s.a_stride = stride(a.a);
  s.b_stride = stride(a.b);
  s.c_stride = stride(a.c);
  s.in = a.a.dtype;
  s.out = a.c.dtype;
  s.trans_a = a.trans_a;
  s.trans_b = a.trans_b;
  // An addend has the layout of c, and which of the two is added does not matter to an algorithm.
  s.accumulate = a.accumulate || !a.addend.empty();
  s.align = std::min(
      {alignment(a.a.data), alignment(a.b.data), alignment(a.c.data), alignment(a.addend.data)});
  return s;
}

// cuBLASLt sees c^T = op(b)^T op(a)^T: its first operand is our b.
struct Gemm::Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t c = nullptr;
  cublasLtMatmulAlgo_t algo{};
  bool plain = false;
  int chosen = 0;   // index among the heuristics
  int found = 0;    // heuristics returned
  int equal = 0;    // of them with the bits of the first
  float ms = 0.0F;  // time of the chosen one on the probe, 0: not timed

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (a != nullptr) cublasLtMatrixLayoutDestroy(a);
    if (b != nullptr) cublasLtMatrixLayoutDestroy(b);
    if (c != nullptr) cublasLtMatrixLayoutDestroy(c);
    if (desc != nullptr) cublasLtMatmulDescDestroy(desc);
  }

  Status describe(const GemmShape& s) {
    SWAX_TRY(lt_status(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                       "cublasLtMatmulDescCreate"));
    const cublasOperation_t op_b = s.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_a = s.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    SWAX_TRY(lt_status(
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof(op_b)),
        "CUBLASLT_MATMUL_DESC_TRANSA"));
    SWAX_TRY(lt_status(
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof(op_a)),
        "CUBLASLT_MATMUL_DESC_TRANSB"));
    SWAX_ASSIGN(b, layout(s.in, s.trans_b ? s.n : s.k, s.trans_b ? s.k : s.n, s.b_stride));
    SWAX_ASSIGN(a, layout(s.in, s.trans_a ? s.k : s.m, s.trans_a ? s.m : s.k, s.a_stride));
    SWAX_ASSIGN(c, layout(s.out, s.m, s.n, s.c_stride));
    return ok();
  }

  cublasStatus_t multiply(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& with,
                          cudaStream_t stream, void* workspace, const void* pa, const void* pb,
                          const void* addend, void* pc, bool accumulate) const {
    const float alpha = 1.0F;
    const float beta = accumulate ? 1.0F : 0.0F;
    return cublasLtMatmul(handle, desc, &alpha, pb, b, pa, a, &beta, addend, c, pc, c, &with,
                          workspace, static_cast<size_t>(kStreamWorkspace), stream);
  }
};

namespace {

using Heuristics = std::array<cublasLtMatmulHeuristicResult_t, kCandidates>;

Status find_heuristics(cublasLtHandle_t handle, const GemmShape& shape, cublasLtMatmulDesc_t desc,
                       cublasLtMatrixLayout_t first, cublasLtMatrixLayout_t second,
                       cublasLtMatrixLayout_t c, Heuristics& results, int& count) {
  cublasLtMatmulPreference_t preference = nullptr;
  SWAX_TRY(
      lt_status(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kStreamWorkspace));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  const auto align = static_cast<uint32_t>(shape.align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align);
  count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, desc, first, second, c, c, preference, kCandidates, results.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) count = 0;  // not supported: the plain kernel does it
  return ok();
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

Result<std::unique_ptr<Gemm>> Gemm::create() {
  auto gemm = std::unique_ptr<Gemm>(new Gemm());
  SWAX_TRY(lt_status(cublasLtCreate(&gemm->handle_), "cublasLtCreate"));
  return gemm;
}

Gemm::~Gemm() {
  plans_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

Status Gemm::choose(cudaStream_t stream, void* workspace, const GemmShape& s, Plan& plan) {
  Heuristics found{};
  SWAX_TRY(find_heuristics(handle_, s, plan.desc, plan.b, plan.a, plan.c, found, plan.found));
  plan.plain = plan.found == 0;
  if (plan.plain) return ok();
  plan.algo = found[0].algo;
  if (plan.found == 1 || capturing(stream)) return ok();
  ProbeMemory memory;
  const int64_t a_bytes = (s.trans_a ? s.k : s.m) * s.a_stride * dtype_bytes(s.in);
  const int64_t b_bytes = (s.trans_b ? s.n : s.k) * s.b_stride * dtype_bytes(s.in);
  const int64_t c_bytes = s.m * s.c_stride * dtype_bytes(s.out);
  void* a = memory.take(a_bytes);
  void* b = memory.take(b_bytes);
  void* first = memory.take(c_bytes);
  void* other = memory.take(c_bytes);
  void* flag = memory.take(sizeof(int32_t));
  if (a == nullptr || b == nullptr || first == nullptr || other == nullptr || flag == nullptr) {
    return ok();
  }
  SWAX_TRY(fill_probe(stream, s.in, a, a_bytes / dtype_bytes(s.in), 1));
  SWAX_TRY(fill_probe(stream, s.in, b, b_bytes / dtype_bytes(s.in), 2));
  Timer timer;
  for (int i = 0; i < plan.found; ++i) {
    void* c = i == 0 ? first : other;
    const auto& algo = found[static_cast<size_t>(i)].algo;
    SWAX_TRY(fill_probe(stream, s.out, c, c_bytes / dtype_bytes(s.out), 3));
    SWAX_CUDA_TRY("gemm", cudaMemsetAsync(flag, 0, sizeof(int32_t), stream));
    if (plan.multiply(handle_, algo, stream, workspace, a, b, c, c, s.accumulate) !=
        CUBLAS_STATUS_SUCCESS) {
      if (i == 0) return internal_error("gemm: the first heuristic does not run");
      continue;
    }
    if (i > 0) SWAX_TRY(compare_bytes(stream, first, other, c_bytes, static_cast<int32_t*>(flag)));
    int32_t different = 0;
    SWAX_CUDA_TRY("gemm", cudaMemcpyAsync(&different, flag, sizeof(different),
                                          cudaMemcpyDeviceToHost, stream));
    SWAX_CUDA_TRY("gemm", cudaStreamSynchronize(stream));
    if (different != 0) continue;
    ++plan.equal;
    float best = 0.0F;
    for (int run = 0; run < kTimedRuns; ++run) {
      timer.begin(stream);
      plan.multiply(handle_, algo, stream, workspace, a, b, other, other, s.accumulate);
      const float ms = timer.end_ms(stream);
      if (run == 0 || ms < best) best = ms;
    }
    if (i == 0 || best < plan.ms) {
      plan.ms = best;
      plan.chosen = i;
      plan.algo = algo;
    }
  }
  return ok();
}

Result<const Gemm::Plan*> Gemm::plan(cudaStream_t stream, void* workspace, const GemmShape& shape) {
  const auto at = plans_.find(shape);
  if (at != plans_.end()) return at->second.get();
  auto made = std::make_unique<Plan>();
  SWAX_TRY(made->describe(shape));
  SWAX_TRY(choose(stream, workspace, shape, *made));
  return plans_.emplace(shape, std::move(made)).first->second.get();
}

Status Gemm::run(cudaStream_t stream, void* workspace, const GemmArgs& a) {
  SWAX_ASSIGN(const Plan* p, plan(stream, workspace, gemm_shape(a)));
  if (p->plain) return plain_gemm(stream, a);
  return lt_status(p->multiply(handle_, p->algo, stream, workspace, a.a.data, a.b.data,
                               a.addend.empty() ? a.c.data : a.addend.data, a.c.data,
                               a.accumulate || !a.addend.empty()),
                   "cublasLtMatmul");
}

std::string Gemm::choices() const {
  std::string out;
  for (const auto& [s, p] : plans_) {
    out += to_text(s.m) + "x" + to_text(s.n) + "x" + to_text(s.k) + " " + dtype_name(s.in) + "-" +
           dtype_name(s.out) + (s.trans_a ? " ta" : "") + (s.trans_b ? " tb" : "") +
           (s.accumulate ? " +=" : "") + " strides " + to_text(s.a_stride) + "," +
           to_text(s.b_stride) + "," + to_text(s.c_stride) + " align " + to_text(s.align) + ": ";
    out += p->plain ? std::string("plain")
                    : "heuristic " + to_text(int64_t{p->chosen}) + " of " +
                          to_text(int64_t{p->found}) + ", " + to_text(int64_t{p->equal}) +
                          " equal, " + fixed_text(static_cast<double>(p->ms), 4) + " ms";
    out += "\n";
  }
  return out;
}

}  // namespace swax::cuda
