// The exchanges of the trainer in the forms that NCCL has for them, one process a GPU over MPI:
//   mpirun ... cuda_nccl_bench [MILLIONS]
// of a unit with so many million parameters (51, a layer of swax-1.4b): all-to-all of its fp32
// gradient, reduce-scatter of the same, all-gather of its bf16 weights. A line a form and call:
// time alone (median of 11), and what a call adds to a row of products that runs beside it. Forms:
// plain buffers; registered ones; fewer thread blocks; symmetric windows, moved by kernels or by
// the copy engines. NVLink multicast is off: its objects belong to the whole host.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/bench/cuda_nccl_calls.h"
#include "worker/comm/local_collectives.h"
#include "worker/comm/mpi_collectives.h"
#include "worker/train/launcher.h"

namespace swax {
namespace {

using test::nccl_status;

constexpr int kSamples = 11;
constexpr int kCallsBeside = 6;
constexpr int kProductsBeside = 40;

struct Form {
  const char* name;
  int ctas = 0;             // 0: NCCL's choice
  bool registered = false;  // ncclCommRegister
  bool windows = false;     // ncclMemAlloc and symmetric windows
  bool copy_engines = false;
};
constexpr Form kForms[] = {
    {.name = "plain"},
    {.name = "registered", .registered = true},
    {.name = "ctas 4", .ctas = 4},
    {.name = "ctas 8", .ctas = 8},
    {.name = "ctas 16", .ctas = 16},
    {.name = "ctas 32", .ctas = 32},
    {.name = "windows", .windows = true},
    {.name = "copy engines", .windows = true, .copy_engines = true},
};

// Products of bf16 on a stream of their own.
struct Load {
  Backend* backend;
  std::unique_ptr<Stream> stream;
  Buffer a, b, c;
  GemmArgs args;

  static Result<Load> make(Backend& backend) {
    constexpr int64_t kRows = 16384, kInner = 2048, kColumns = 5632;
    Load load;
    load.backend = &backend;
    SWAX_ASSIGN(load.stream, backend.make_stream());
    SWAX_ASSIGN(load.a, backend.allocate(2 * kRows * kInner, MemoryKind::kDevice));
    SWAX_ASSIGN(load.b, backend.allocate(2 * kColumns * kInner, MemoryKind::kDevice));
    SWAX_ASSIGN(load.c, backend.allocate(2 * kRows * kColumns, MemoryKind::kDevice));
    const auto tensor = [](const Buffer& t, int64_t rows, int64_t columns) {
      return Tensor::of(t.data(), DType::kBF16, {rows, columns});
    };
    load.args = {.a = tensor(load.a, kRows, kInner),
                 .b = tensor(load.b, kColumns, kInner),
                 .c = tensor(load.c, kRows, kColumns),
                 .trans_b = true};
    // Any finite values do: one float is two of bf16.
    const auto floats = [](const Buffer& t) {
      return Tensor::of(t.data(), DType::kF32, {t.bytes() / 4});
    };
    SWAX_TRY(backend.fill(*load.stream, {.x = floats(load.a), .value = 0.7F}));
    SWAX_TRY(backend.fill(*load.stream, {.x = floats(load.b), .value = -0.3F}));
    SWAX_TRY(load.run(3));
    SWAX_TRY(backend.sync(*load.stream));
    return load;
  }
  Status run(int products) {
    for (int i = 0; i < products; ++i) SWAX_TRY(backend->gemm(*stream, args));
    return ok();
  }
};

// A communicator of one form, with its buffers.
class Link {
 public:
  static Result<std::unique_ptr<Link>> make(Collectives& host, const Form& form, size_t bytes);
  ~Link() {
    if (comm == nullptr) return;
    cudaDeviceSynchronize();
    for (void* handle : handles_) ncclCommDeregister(comm, handle);
    for (ncclWindow_t window : windows_) ncclCommWindowDeregister(comm, window);
    ncclCommDestroy(comm);
    for (void* buffer : {send, recv})
      form_.windows ? void(ncclMemFree(buffer)) : void(cudaFree(buffer));
  }
  ncclComm_t comm = nullptr;
  void* send = nullptr;
  void* recv = nullptr;

 private:
  explicit Link(const Form& form) : form_(form) {}
  Status attach(void** buffer, size_t bytes);
  Form form_;
  std::vector<void*> handles_;
  std::vector<ncclWindow_t> windows_;
};

Status Link::attach(void** buffer, size_t bytes) {
  if (form_.windows) {
    SWAX_TRY(nccl_status("memory", ncclMemAlloc(buffer, bytes)));
    ncclWindow_t window = nullptr;
    SWAX_TRY(nccl_status(
        "window", ncclCommWindowRegister(comm, *buffer, bytes, &window, NCCL_WIN_COLL_SYMMETRIC)));
    if (window == nullptr) return failed_precondition("no symmetric windows here");
    windows_.push_back(window);
  } else {
    if (cudaMalloc(buffer, bytes) != cudaSuccess) return resource_exhausted("no device memory");
  }
  if (form_.registered) {
    void* handle = nullptr;
    SWAX_TRY(nccl_status("register", ncclCommRegister(comm, *buffer, bytes, &handle)));
    if (handle != nullptr) handles_.push_back(handle);
  }
  return cudaMemset(*buffer, 0, bytes) == cudaSuccess ? ok() : internal_error("memset failed");
}

Result<std::unique_ptr<Link>> Link::make(Collectives& host, const Form& form, size_t bytes) {
  std::unique_ptr<Link> link(new Link(form));
  SWAX_ASSIGN(const ncclUniqueId id, test::nccl_unique_id(host));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (form.ctas > 0) config.maxCTAs = form.ctas;
  if (form.copy_engines) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  SWAX_TRY(nccl_status("start",
                       ncclCommInitRankConfig(&link->comm, host.size(), id, host.rank(), &config)));
  SWAX_TRY(link->attach(&link->send, bytes));
  SWAX_TRY(link->attach(&link->recv, bytes));
  return link;
}

ncclResult_t all_to_all(const Link& link, const Form& form, int ranks, size_t piece,
                        cudaStream_t stream) {
  if (form.windows) return ncclAlltoAll(link.send, link.recv, piece, ncclFloat, link.comm, stream);
  ncclResult_t result = ncclGroupStart();
  for (int p = 0; p < ranks && result == ncclSuccess; ++p) {
    const size_t at = static_cast<size_t>(p) * piece;
    result = ncclSend(static_cast<float*>(link.send) + at, piece, ncclFloat, p, link.comm, stream);
    if (result == ncclSuccess)
      result =
          ncclRecv(static_cast<float*>(link.recv) + at, piece, ncclFloat, p, link.comm, stream);
  }
  const ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

class Bench {
 public:
  Bench(Collectives& host, Load& load) : host_(host), load_(load) {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    for (cudaEvent_t* e : {&begin_, &end_, &products_begin_, &products_end_}) cudaEventCreate(e);
  }
  Status form(const Form& form, size_t elements);

 private:
  using Call = std::function<ncclResult_t()>;
  Result<double> alone_ms(const Call& call, int calls);
  Result<double> beside_ms(const Call& call, int calls);
  Collectives& host_;
  Load& load_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr, products_begin_ = nullptr, products_end_ = nullptr;
};

Result<double> Bench::alone_ms(const Call& call, int calls) {
  std::vector<float> times;
  for (int i = 0; i < kSamples; ++i) {
    SWAX_TRY(host_.barrier());
    cudaEventRecord(begin_, stream_);
    for (int c = 0; c < calls; ++c) SWAX_TRY(nccl_status("call", call()));
    cudaEventRecord(end_, stream_);
    if (cudaStreamSynchronize(stream_) != cudaSuccess) return internal_error("a call failed");
    float ms = 0.0F;
    cudaEventElapsedTime(&ms, begin_, end_);
    times.push_back(ms / static_cast<float>(calls));
  }
  std::sort(times.begin(), times.end());
  return double{times[kSamples / 2]};
}

// The products' own time, with so many calls beside them.
Result<double> Bench::beside_ms(const Call& call, int calls) {
  std::vector<float> times;
  cudaStream_t products = cuda::raw(*load_.stream);
  for (int i = 0; i < 5; ++i) {
    SWAX_TRY(host_.barrier());
    cudaEventRecord(products_begin_, products);
    SWAX_TRY(load_.run(2));
    for (int c = 0; c < calls; ++c) SWAX_TRY(nccl_status("call", call()));
    SWAX_TRY(load_.run(kProductsBeside - 2));
    cudaEventRecord(products_end_, products);
    if (cudaDeviceSynchronize() != cudaSuccess) return internal_error("a call failed");
    float ms = 0.0F;
    cudaEventElapsedTime(&ms, products_begin_, products_end_);
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return double{times[2]};
}

Status Bench::form(const Form& form, size_t elements) {
  const int ranks = host_.size();
  const size_t piece = elements / static_cast<size_t>(ranks);
  SWAX_ASSIGN(const auto link, Link::make(host_, form, elements * sizeof(float)));
  const auto own = [&](void* buffer, size_t element_bytes) {
    return static_cast<std::byte*>(buffer) +
           static_cast<size_t>(host_.rank()) * piece * element_bytes;
  };
  struct Row {
    const char* what;
    Call call;
  };
  const Row rows[] = {
      {"all-to-all", [&] { return all_to_all(*link, form, ranks, piece, stream_); }},
      {"reduce-scatter",
       [&] {
         return ncclReduceScatter(link->send, own(link->recv, 4), piece, ncclFloat, ncclSum,
                                  link->comm, stream_);
       }},
      {"all-gather",
       [&] {
         return ncclAllGather(own(link->recv, 2), link->recv, piece, ncclBfloat16, link->comm,
                              stream_);
       }},
  };
  for (const Row& row : rows) {
    SWAX_TRY(nccl_status(row.what, row.call()));  // makes what it needs
    SWAX_ASSIGN(const double one, alone_ms(row.call, 1));
    SWAX_ASSIGN(const double many, alone_ms(row.call, 8));
    SWAX_ASSIGN(const double products, beside_ms(row.call, 0));
    SWAX_ASSIGN(const double beside, beside_ms(row.call, kCallsBeside));
    if (host_.rank() != 0) continue;
    std::printf("%-13s %-14s alone %.3f ms, in a row %.3f; a call beside products adds %.3f\n",
                form.name, row.what, one, many, (beside - products) / kCallsBeside);
    std::fflush(stdout);
  }
  return ok();
}

Status bench(Collectives& host, int64_t millions) {
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  SWAX_ASSIGN(const auto backend, cuda::CudaBackend::open(static_cast<int>(local_rank().rank)));
  SWAX_ASSIGN(Load load, Load::make(*backend));
  Bench bench(host, load);
  const int64_t unit = 1024 * host.size();
  const int64_t elements = (millions * 1'000'000 + unit - 1) / unit * unit;
  for (const Form& form : kForms) {
    const Status done = bench.form(form, static_cast<size_t>(elements));
    int64_t failed = done.ok() ? 0 : 1;
    SWAX_TRY(host.max_host(std::span(&failed, 1)));
    if (!done.ok())
      std::printf("%s: rank %d: %s\n", form.name, host.rank(), done.message().c_str());
  }
  return ok();
}

}  // namespace
}  // namespace swax

int main(int argc, char** argv) {
  const int64_t millions = argc > 1 ? std::atoll(argv[1]) : 51;
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (argc > 2 || millions < 1 || millions > 1000 || size == nullptr) {
    std::fprintf(stderr, "usage: mpirun -np RANKS ... cuda_nccl_bench [MILLIONS 1..1000]\n");
    return 2;
  }
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  auto host = swax::init_mpi_collectives(std::atoi(size));
  const swax::Status status =
      host.ok() ? swax::bench(**host, millions) : swax::Status(host.status());
  if (!status.ok()) {
    std::fprintf(stderr, "cuda_nccl_bench: %s\n", status.to_string().c_str());
    std::fflush(stderr);
    ::_exit(1);
  }
  swax::finalize_mpi();
  return 0;
}
