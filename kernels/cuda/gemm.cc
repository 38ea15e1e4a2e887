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

// Row-major [rows, cols] with a stride is column-major [cols, rows] with that leading dimension.
Result<cublasLtMatrixLayout_t> layout(DType type, int64_t rows, int64_t cols, int64_t stride) {
  cublasLtMatrixLayout_t out = nullptr;
  SWAX_TRY(lt_status(cublasLtMatrixLayoutCreate(&out, lt_type(type), static_cast<uint64_t>(cols),
                                                static_cast<uint64_t>(rows), stride),
                     "cublasLtMatrixLayoutCreate"));
  return out;
}

// In the order of kAttributeNames. The machine is little-endian: a shorter attribute is the front
// of its int64_t.
struct Attribute {
  cublasLtMatmulAlgoConfigAttributes_t id;
  size_t bytes;
};
constexpr std::array<Attribute, kAttributeNames.size()> kAttributes = {{
    {CUBLASLT_ALGO_CONFIG_ID, 4},
    {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
}};

bool attributes_of(const cublasLtMatmulAlgo_t& algo, GemmAttributes& values) {
  values = {};
  for (size_t i = 0; i < kAttributes.size(); ++i) {
    size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&algo, kAttributes[i].id, &values[i],
                                             kAttributes[i].bytes,
                                             &written) != CUBLAS_STATUS_SUCCESS)
      return false;
  }
  return true;
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

// cuBLASLt sees c^T = op(b)^T op(a)^T: its first operand is our b.
struct Gemm::Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t c = nullptr;
  cublasLtMatmulAlgo_t algo{};
  GemmChoice choice;

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

  // The algorithm that the attributes describe, when it does this product here.
  cublasStatus_t make(cublasLtHandle_t handle, const GemmShape& s, const GemmAttributes& values,
                      cublasLtMatmulAlgo_t& out) const {
    cublasStatus_t status =
        cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, lt_type(s.in), lt_type(s.in),
                               lt_type(s.out), lt_type(s.out), static_cast<int>(values[0]), &out);
    for (size_t i = 1; i < kAttributes.size() && status == CUBLAS_STATUS_SUCCESS; ++i)
      status = cublasLtMatmulAlgoConfigSetAttribute(&out, kAttributes[i].id, &values[i],
                                                    kAttributes[i].bytes);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    cublasLtMatmulHeuristicResult_t checked{};
    status = cublasLtMatmulAlgoCheck(handle, desc, b, a, c, c, &out, &checked);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return checked.workspaceSize > static_cast<size_t>(kStreamWorkspace)
               ? CUBLAS_STATUS_NOT_SUPPORTED
               : CUBLAS_STATUS_SUCCESS;
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

struct Gemm::Candidate {
  cublasLtMatmulAlgo_t algo{};
  GemmAttributes attributes{};
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

Status Gemm::choose_form(cudaStream_t stream, void* workspace, const GemmShape& s, Plan& plan) {
  Heuristics found{};
  int count = 0;
  SWAX_TRY(find_heuristics(handle_, s, plan.desc, plan.b, plan.a, plan.c, found, count));
  if (count == 0) return ok();  // the plain kernel
  std::vector<Candidate> candidates;
  for (int i = 0; i < count; ++i) {
    Candidate c;
    if (!attributes_of(found[static_cast<size_t>(i)].algo, c.attributes)) continue;
    if (plan.make(handle_, s, c.attributes, c.algo) == CUBLAS_STATUS_SUCCESS)
      candidates.push_back(c);
  }
  plan.choice.form = GemmChoice::Form::kFirst;
  plan.algo = found[0].algo;
  if (candidates.empty()) return ok();
  const auto take = [&](const Candidate& c) {
    plan.choice = {.form = GemmChoice::Form::kAlgorithm, .attributes = c.attributes};
    plan.algo = c.algo;
  };
  take(candidates[0]);
  if (candidates.size() == 1 || capturing(stream)) return ok();
  SWAX_ASSIGN(const size_t fastest, probe(stream, workspace, s, plan, candidates));
  take(candidates[fastest]);
  return ok();
}

// Index of the fastest candidate among those with the bits of the first.
Result<size_t> Gemm::probe(cudaStream_t stream, void* workspace, const GemmShape& s,
                           const Plan& plan, std::span<const Candidate> candidates) {
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
    return size_t{0};
  }
  SWAX_TRY(fill_probe(stream, s.in, a, a_bytes / dtype_bytes(s.in), 1));
  SWAX_TRY(fill_probe(stream, s.in, b, b_bytes / dtype_bytes(s.in), 2));
  Timer timer;
  size_t fastest = 0;
  float fastest_ms = 0.0F;
  for (size_t i = 0; i < candidates.size(); ++i) {
    void* c = i == 0 ? first : other;
    const auto& algo = candidates[i].algo;
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
    float best = 0.0F;
    for (int run = 0; run < kTimedRuns; ++run) {
      timer.begin(stream);
      plan.multiply(handle_, algo, stream, workspace, a, b, other, other, s.accumulate);
      const float ms = timer.end_ms(stream);
      if (run == 0 || ms < best) best = ms;
    }
    if (i == 0 || best < fastest_ms) {
      fastest_ms = best;
      fastest = i;
    }
  }
  return fastest;
}

Result<const Gemm::Plan*> Gemm::plan(cudaStream_t stream, void* workspace, const GemmShape& shape) {
  const auto at = plans_.find(shape);
  if (at != plans_.end()) return at->second.get();
  auto made = std::make_unique<Plan>();
  SWAX_TRY(made->describe(shape));
  SWAX_TRY(choose_form(stream, workspace, shape, *made));
  return plans_.emplace(shape, std::move(made)).first->second.get();
}

Status Gemm::run(cudaStream_t stream, void* workspace, const GemmArgs& a) {
  SWAX_ASSIGN(const Plan* p, plan(stream, workspace, gemm_shape(a)));
  if (p->choice.form == GemmChoice::Form::kPlain) return plain_gemm(stream, a);
  return lt_status(p->multiply(handle_, p->algo, stream, workspace, a.a.data, a.b.data,
                               a.addend.empty() ? a.c.data : a.addend.data, a.c.data,
                               a.accumulate || !a.addend.empty()),
                   "cublasLtMatmul");
}

Result<std::string> Gemm::choose(cudaStream_t stream, void* workspace,
                                 std::span<const GemmArgs> products) {
  std::map<GemmShape, GemmChoice> chosen;
  for (const GemmArgs& a : products) {
    const GemmShape shape = gemm_shape(a);
    if (chosen.contains(shape)) continue;
    SWAX_ASSIGN(const Plan* p, plan(stream, workspace, shape));
    chosen.emplace(shape, p->choice);
  }
  std::string lines;
  for (const auto& [shape, choice] : chosen)
    lines += choice_line({.shape = shape, .choice = choice}) + "\n";
  return lines;
}

Status Gemm::adopt(std::string_view lines) {
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    SWAX_TRY(adopt_line(lines.substr(0, end)));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return ok();
}

Status Gemm::adopt_line(std::string_view text) {
  SWAX_ASSIGN(const GemmLine line, parse_choice_line(text));
  const auto refuse = [&](const std::string& why) {
    return failed_precondition("\"" + std::string(text) + "\": " + why);
  };
  auto made = std::make_unique<Plan>();
  if (!made->describe(line.shape).ok()) return refuse("cuBLASLt refuses the shape");
  made->choice = line.choice;
  if (line.choice.form == GemmChoice::Form::kAlgorithm) {
    const cublasStatus_t status =
        made->make(handle_, line.shape, line.choice.attributes, made->algo);
    if (status != CUBLAS_STATUS_SUCCESS)
      return refuse(std::string("this device or cuBLASLt has no such algorithm (") +
                    cublasLtGetStatusName(status) + ")");
  }
  if (line.choice.form == GemmChoice::Form::kFirst) {
    Heuristics found{};
    int count = 0;
    SWAX_TRY(
        find_heuristics(handle_, line.shape, made->desc, made->b, made->a, made->c, found, count));
    if (count == 0) return refuse("this cuBLASLt has no algorithm");
    made->algo = found[0].algo;
  }
  plans_.insert_or_assign(line.shape, std::move(made));
  return ok();
}

}  // namespace swax::cuda
