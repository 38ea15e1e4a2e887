// Matrix products on cuBLASLt. f32 inputs are multiplied in f32 (no tf32), bf16 inputs exactly;
// sums are f32, split-K is forbidden, so the order of a sum follows from shape and algorithm. A
// plan (algorithm and layouts) is made at the first product of a shape and kept. Of the heuristics
// the fastest on random probe data is taken among those whose result equals that of the first one
// bit for bit; where no memory for a probe is left, or the stream is being captured, the first one.
// What runs is made from the attributes of the heuristic, so that a line of text replays it in
// another process (gemm_choice.h). Shapes that cuBLASLt refuses go to a plain kernel. Threads: one,
// as the backend.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm_choice.h"
#include "kernels/spec/gemm.h"
#include "proto/base/status.h"

namespace swax::cuda {

class Gemm {
 public:
  static Result<std::unique_ptr<Gemm>> create();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  Status run(cudaStream_t stream, void* workspace, const GemmArgs& a);
  // Backend::choose and adopt.
  Result<std::string> choose(cudaStream_t stream, void* workspace,
                             std::span<const GemmArgs> products);
  Status adopt(std::string_view lines);
  int64_t plans() const { return static_cast<int64_t>(plans_.size()); }

 private:
  struct Plan;
  struct Candidate;
  Gemm() = default;
  Result<const Plan*> plan(cudaStream_t stream, void* workspace, const GemmShape& shape);
  Status choose_form(cudaStream_t stream, void* workspace, const GemmShape& shape, Plan& plan);
  Result<size_t> probe(cudaStream_t stream, void* workspace, const GemmShape& shape,
                       const Plan& plan, std::span<const Candidate> candidates);
  Status adopt_line(std::string_view text);

  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmShape, std::unique_ptr<Plan>> plans_;
};

// c = op(a) op(b) (+ c): each element one chain of fused multiply-adds over rising k. For any
// shape.
Status plain_gemm(cudaStream_t stream, const GemmArgs& a);

// Probe data and their comparison.
// Fills `elements` of f32 or bf16 with numbers of [-1, 1) that depend on index and seed alone.
Status fill_probe(cudaStream_t stream, DType dtype, void* data, int64_t elements, uint32_t seed);
// different[0] := 1 when a byte differs (it must be 0 before).
Status compare_bytes(cudaStream_t stream, const void* a, const void* b, int64_t bytes,
                     int32_t* different);

}  // namespace swax::cuda
