#include "kernels/cuda/cuda_backend.h"

#include <cublasLt.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/open.h"
#include "proto/base/text.h"

namespace swax::cuda {
namespace {

void free_device(void*, void* data, int64_t) { cudaFree(data); }
void free_pinned(void*, void* data, int64_t) { cudaFreeHost(data); }

std::string version_text(int version) {  // 13010 -> "13.1"
  return to_text(int64_t{version / 1000}) + "." + to_text(int64_t{version % 1000 / 10});
}

std::string text_of_device(const cudaDeviceProp& p) {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  std::string name = p.name;
  for (char& c : name) {
    if (c == ' ') c = '_';
  }
  return "device=" + name + " sm=" + to_text(int64_t{p.major}) + "." + to_text(int64_t{p.minor}) +
         " multiprocessors=" + to_text(int64_t{p.multiProcessorCount}) +
         " driver=" + version_text(driver) + " runtime=" + version_text(runtime) +
         " cublaslt=" + to_text(static_cast<int64_t>(cublasLtGetVersion()));
}

int64_t byte_stride(const Tensor& t) { return t.row_stride * dtype_bytes(t.dtype); }

}  // namespace

Result<std::unique_ptr<CudaBackend>> CudaBackend::open(int ordinal) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess) {
    cudaGetLastError();
    return failed_precondition(std::string("backend cuda: no device: ") +
                               cudaGetErrorString(found));
  }
  if (ordinal < 0 || ordinal >= count) {
    return failed_precondition("backend cuda: device " + to_text(int64_t{ordinal}) +
                               ": this machine has " + to_text(int64_t{count}));
  }
  cudaDeviceProp p{};
  SWAX_CUDA_TRY("backend cuda", cudaGetDeviceProperties(&p, ordinal));
  if (p.major != 9 || p.minor != 0) {
    return failed_precondition(std::string("backend cuda: ") + p.name +
                               ": the kernels need compute capability 9.0, this is " +
                               to_text(int64_t{p.major}) + "." + to_text(int64_t{p.minor}));
  }
  SWAX_CUDA_TRY("backend cuda", cudaSetDevice(ordinal));
  auto backend = std::unique_ptr<CudaBackend>(new CudaBackend(ordinal, p));
  SWAX_ASSIGN(backend->gemm_, Gemm::create());
  return backend;
}

CudaBackend::CudaBackend(int ordinal, const cudaDeviceProp& properties)
    : ordinal_(ordinal),
      multiprocessors_(properties.multiProcessorCount),
      device_text_(text_of_device(properties)) {}

CudaBackend::~CudaBackend() = default;

Status CudaBackend::use_device() const {
  return status_of(cudaSetDevice(ordinal_), "backend cuda", "cudaSetDevice");
}

Result<Buffer> CudaBackend::allocate(int64_t bytes, MemoryKind kind) {
  if (bytes < 0) return invalid_argument("allocate: bytes=" + to_text(bytes) + ": must be >= 0");
  SWAX_TRY(use_device());
  const size_t size = static_cast<size_t>(bytes < 1 ? 1 : bytes);
  void* data = nullptr;
  if (kind == MemoryKind::kPinned) {
    const cudaError_t error = cudaHostAlloc(&data, size, cudaHostAllocPortable);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return resource_exhausted("allocate: " + bytes_text(bytes) +
                                " of pinned memory: " + cudaGetErrorString(error));
    }
    return Buffer(data, bytes, &free_pinned, nullptr);
  }
  ++allocations_;
  const cudaError_t error = cudaMalloc(&data, size);
  if (error != cudaSuccess) {
    cudaGetLastError();
    size_t free = 0;
    size_t total = 0;
    cudaMemGetInfo(&free, &total);
    return resource_exhausted("allocate: " + bytes_text(bytes) + " wanted, " +
                              bytes_text(static_cast<int64_t>(free)) + " of " +
                              bytes_text(static_cast<int64_t>(total)) + " device memory free (" +
                              cudaGetErrorString(error) + ")");
  }
  return Buffer(data, bytes, &free_device, nullptr);
}

Result<std::unique_ptr<Stream>> CudaBackend::make_stream() {
  SWAX_TRY(use_device());
  ++allocations_;
  SWAX_ASSIGN(auto stream, CudaStream::make());
  return std::unique_ptr<Stream>(std::move(stream));
}

Event CudaBackend::record(Stream& s) { return events_.record(raw(s)); }

void CudaBackend::wait(Stream& s, Event e) { events_.wait(raw(s), e); }

Status CudaBackend::sync(Stream& s) {
  SWAX_TRY(use_device());  // the caller may be a thread that has not used it yet
  return status_of(cudaStreamSynchronize(raw(s)), "sync", "cudaStreamSynchronize");
}

Status CudaBackend::copy(Stream& s, Tensor to, Tensor from) {
  if (to.dtype != from.dtype || to.elements() != from.elements()) {
    return invalid_argument("copy: to and from must have one dtype and one size");
  }
  if (to.elements() == 0) return ok();
  SWAX_TRY(need_data("copy", {&to, &from}));
  if (to.contiguous() && from.contiguous()) {
    if (to.data == from.data) return ok();
    SWAX_CUDA_TRY("copy", cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.bytes()),
                                          cudaMemcpyDefault, raw(s)));
    return ok();
  }
  if (to.dims[0] != from.dims[0]) {
    return invalid_argument("copy: strided views must have the same rows");
  }
  const int64_t row = to.row_elements() * dtype_bytes(to.dtype);
  SWAX_CUDA_TRY("copy",
                cudaMemcpy2DAsync(to.data, static_cast<size_t>(byte_stride(to)), from.data,
                                  static_cast<size_t>(byte_stride(from)), static_cast<size_t>(row),
                                  static_cast<size_t>(to.dims[0]), cudaMemcpyDefault, raw(s)));
  return ok();
}

Status CudaBackend::gemm(Stream& s, const GemmArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("gemm", {&a.a, &a.b, &a.c, &a.addend}));
  auto& stream = static_cast<CudaStream&>(s);
  return gemm_->run(stream.handle(), stream.workspace(), a);
}

Result<std::string> CudaBackend::choose(Stream& s, std::span<const GemmArgs> products) {
  auto& stream = static_cast<CudaStream&>(s);
  return gemm_->choose(stream.handle(), stream.workspace(), products);
}

Status CudaBackend::begin_capture(Stream& s) {
  return cuda::begin_capture(static_cast<CudaStream&>(s));
}

Result<std::unique_ptr<DeviceGraph>> CudaBackend::end_capture(Stream& s) {
  return cuda::end_capture(static_cast<CudaStream&>(s));
}

Status CudaBackend::launch_graph(Stream& s, DeviceGraph& graph) {
  return static_cast<CudaGraph&>(graph).launch(static_cast<CudaStream&>(s));
}

Result<std::unique_ptr<Backend>> open_cuda_backend(int ordinal) {
  SWAX_ASSIGN(auto backend, CudaBackend::open(ordinal));
  return std::unique_ptr<Backend>(std::move(backend));
}

std::string CudaBackend::fingerprint() const {
  return "cuda " + device_text_ + " gemm=first-bits fmad=off";
}

}  // namespace swax::cuda
