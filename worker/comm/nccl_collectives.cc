#include "worker/comm/nccl_collectives.h"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "worker/comm/nccl_call_watch.h"
#include "worker/comm/nccl_memory.h"
#include "worker/comm/nccl_start.h"
#include "worker/comm/progress_board.h"

namespace swax {
namespace {

// As many launches as a device queues before the host waits anyway.
constexpr int kCallsPending = 1024;
constexpr int64_t kPollMs = 20;
// A call that needs no new connection returns in microseconds; the others are waited for asleep.
constexpr int64_t kSpinNs = 200'000;
constexpr int64_t kFinalizeMs = 10'000;

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(Backend& backend, Collectives& host, const NcclOptions& options, NcclStart start,
                  std::unique_ptr<NcclCallWatch> watch)
      : backend_(backend),
        host_(host),
        options_(options),
        device_(start.device),
        board_(std::move(start.board)),
        watch_(std::move(watch)),
        comm_(start.comm) {
    watchdog_ = std::thread([this] { watch_calls(); });
  }
  ~NcclCollectives() override;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  Result<Buffer> allocate(Backend& backend, int64_t bytes) override;
  Status register_buffer(Tensor buffer) override;
  Result<Event> all_gather(Stream& s, Tensor shard, Tensor full) override;
  Result<Event> all_to_all(Stream& s, Tensor send, Tensor recv) override;

  Status all_gather_host(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return host_call([&] { return host_.all_gather_host(mine, all); });
  }
  Status max_host(std::span<int64_t> values) override {
    return host_call([&] { return host_.max_host(values); });
  }
  Status barrier() override {
    return host_call([&] { return host_.barrier(); });
  }
  void abort(std::string_view reason) override {
    fail("rank " + to_text(rank()) + " aborted: " + std::string(reason));
    host_.abort(reason);
  }

 private:
  Status alive() const;
  void fail(const std::string& reason);
  Status failed(const char* call, ncclResult_t result);
  template <typename Enqueue>
  Result<Event> device_call(Stream& s, const char* name, Enqueue enqueue);
  template <typename Call>
  Status host_call(Call call);
  Status settle(const char* name);
  void watch_calls();
  void look_at_calls(int64_t now_ms);
  void look_at_host_call(int64_t now_ms);

  Backend& backend_;
  Collectives& host_;
  NcclOptions options_;
  int device_;
  std::unique_ptr<ProgressBoard> board_;
  std::unique_ptr<NcclCallWatch> watch_;
  std::vector<void*> registered_;
  NcclMemory memory_;
  int64_t calls_ = 0;
  std::atomic<int64_t> host_calls_{0};
  std::atomic<int64_t> host_since_ms_{-1};  // of the call that the rank's thread is in; -1: none

  std::mutex comm_mutex_;  // one thread at a time calls NCCL with comm_
  ncclComm_t comm_;        // null: aborted

  mutable std::mutex state_mutex_;
  std::condition_variable state_changed_;
  std::string failure_;  // not empty: the group is dead
  bool leaving_ = false;
  std::thread watchdog_;
};

Status NcclCollectives::alive() const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return failure_.empty() ? ok() : unavailable(failure_);
}

// The reason is there before the streams run empty, so nobody takes what they leave for a result.
void NcclCollectives::fail(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    if (!failure_.empty()) return;
    failure_ = reason;
  }
  log_error("comm", "collectives end", {{"reason", reason}});
  board_->give_up(reason);
  if (options_.copy_engines) {  // only the end of the process frees a stream that waits for one
    log_flush();
    host_.abort(reason);
  }
  const std::lock_guard<std::mutex> lock(comm_mutex_);
  if (comm_ == nullptr) return;
  ncclCommAbort(comm_);
  comm_ = nullptr;
}

Status NcclCollectives::failed(const char* call, ncclResult_t result) {
  return unavailable(std::string("NCCL ") + call + ": " + ncclGetErrorString(result) + " (" +
                     printable(ncclGetLastError(comm_), 200) + ")");
}

// A call on a communicator that does not block goes on in the background: nothing may be enqueued
// behind it before it is launched.
Status NcclCollectives::settle(const char* name) {
  SystemClock clock;
  const int64_t begin_ns = clock.monotonic_ns();
  while (true) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) return failed(name, asked);
    if (state == ncclSuccess) return ok();
    if (state != ncclInProgress) return failed(name, state);
    SWAX_TRY(alive());
    if (clock.monotonic_ns() - begin_ns < kSpinNs) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

template <typename Enqueue>
Result<Event> NcclCollectives::device_call(Stream& s, const char* name, Enqueue enqueue) {
  SWAX_TRY(alive());
  const cudaStream_t stream = cuda::raw(s);
  Status room = watch_->begin(stream);
  while (room.code() == Code::kUnavailable) {
    SWAX_TRY(alive());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    room = watch_->begin(stream);
  }
  SWAX_TRY(room);
  board_->asked(kNcclStartCalls + ++calls_);
  Status done;
  {
    const std::lock_guard<std::mutex> lock(comm_mutex_);
    SWAX_TRY(alive());
    const ncclResult_t result = enqueue(comm_, stream);
    done = result == ncclSuccess || result == ncclInProgress ? settle(name) : failed(name, result);
  }
  if (!done.ok()) {
    fail(done.message());
    return alive();
  }
  SWAX_TRY(watch_->end(stream));
  return backend_.record(s);
}

// What ranks do before their first device call (load, choose) takes each as long as it takes; from
// there on they go in step.
template <typename Call>
Status NcclCollectives::host_call(Call call) {
  SWAX_TRY(alive());
  const int64_t number = host_calls_.load(std::memory_order_relaxed) + 1;
  host_calls_.store(number, std::memory_order_relaxed);
  board_->host_asked(number);
  if (calls_ > 0) host_since_ms_.store(SystemClock().monotonic_ms(), std::memory_order_release);
  Status done = call();
  host_since_ms_.store(-1, std::memory_order_release);
  const Status alive_still = alive();
  return alive_still.ok() ? std::move(done) : alive_still;
}

Result<Buffer> NcclCollectives::allocate(Backend& backend, int64_t bytes) {
  if (!options_.copy_engines) return backend.allocate(bytes, MemoryKind::kDevice);
  return memory_.allocate(device_, bytes);
}

Status NcclCollectives::register_buffer(Tensor buffer) {
  if (!buffer.contiguous()) return invalid_argument("register_buffer: must be contiguous");
  SWAX_TRY(alive());
  const std::lock_guard<std::mutex> lock(comm_mutex_);
  SWAX_TRY(alive());
  if (memory_.owns(buffer.data)) {
    const ncclResult_t opened = memory_.open(comm_, buffer.data);
    if (opened != ncclSuccess && opened != ncclInProgress) return failed("window", opened);
    return settle("window");
  }
  void* handle = nullptr;
  const ncclResult_t result =
      ncclCommRegister(comm_, buffer.data, static_cast<size_t>(buffer.bytes()), &handle);
  if (result != ncclSuccess && result != ncclInProgress) return failed("register", result);
  SWAX_TRY(settle("register"));
  if (handle != nullptr) registered_.push_back(handle);
  return ok();
}

Result<Event> NcclCollectives::all_gather(Stream& s, Tensor shard, Tensor full) {
  if (!shard.contiguous() || !full.contiguous() || shard.dtype != full.dtype ||
      full.elements() != shard.elements() * size()) {
    return invalid_argument("all_gather: full must hold " + to_text(size()) +
                            " shards of the same dtype, contiguous");
  }
  const size_t bytes = static_cast<size_t>(shard.bytes());
  return device_call(s, "all_gather", [&](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(shard.data, full.data, bytes, ncclUint8, comm, stream);
  });
}

Result<Event> NcclCollectives::all_to_all(Stream& s, Tensor send, Tensor recv) {
  if (!send.contiguous() || !recv.contiguous() || send.dtype != recv.dtype ||
      send.elements() != recv.elements() || send.elements() % size() != 0) {
    return invalid_argument("all_to_all: send and recv must hold " + to_text(size()) +
                            " equal pieces of the same dtype, contiguous");
  }
  const size_t piece = static_cast<size_t>(send.bytes() / size());
  return device_call(s, "all_to_all", [&](ncclComm_t comm, cudaStream_t stream) {
    if (options_.copy_engines) {
      return ncclAlltoAll(send.data, recv.data, piece, ncclUint8, comm, stream);
    }
    const auto at = [&](const Tensor& t, int p) {
      return static_cast<std::byte*>(t.data) + static_cast<size_t>(p) * piece;
    };
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess) return result;
    for (int p = 0; p < size() && result == ncclSuccess; ++p) {
      result = ncclSend(at(send, p), piece, ncclUint8, p, comm, stream);
      if (result == ncclSuccess) result = ncclRecv(at(recv, p), piece, ncclUint8, p, comm, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();  // also after an error: it closes the group
    return result == ncclSuccess ? ended : result;
  });
}

void NcclCollectives::look_at_calls(int64_t now_ms) {
  const auto polled = watch_->poll(now_ms);
  if (!polled.ok()) {
    fail(polled.status().message());
    return;
  }
  board_->reached(kNcclStartCalls + polled->reached);
  board_->completed(kNcclStartCalls + polled->completed);
  if (polled->waiting_ms > options_.call_ms_max) {
    fail("device call " + to_text(polled->completed + 1) + " of rank " + to_text(rank()) +
         " is not complete after " + duration_text(polled->waiting_ms) + "; " +
         board_->late(kNcclStartCalls + polled->completed + 1));
    return;
  }
  if (const std::string other = board_->given_up(); !other.empty()) {
    fail("another rank has given up: " + other);
    return;
  }
  // The rank's thread looks at errors itself while it is inside a call.
  std::unique_lock<std::mutex> lock(comm_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr) return;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) return;
  const Status why = failed("communicator", asked == ncclSuccess ? state : asked);
  lock.unlock();
  fail(why.message());
}

// The rank's thread cannot be called back from there but by the end of the group: of threads, their
// calls fail; a process ends, so what it has to say is written first.
void NcclCollectives::look_at_host_call(int64_t now_ms) {
  const int64_t since_ms = host_since_ms_.load(std::memory_order_acquire);
  if (since_ms < 0 || now_ms - since_ms <= options_.call_ms_max) return;
  const int64_t number = host_calls_.load(std::memory_order_relaxed);
  const std::string reason = "host call " + to_text(number) + " of rank " + to_text(rank()) +
                             " is not complete after " + duration_text(now_ms - since_ms) + "; " +
                             board_->late_on_host(number);
  fail(reason);
  log_flush();
  host_.abort(reason);
}

void NcclCollectives::watch_calls() {
  cudaSetDevice(device_);
  // A query from this thread must not spoil a graph that the rank's thread is capturing.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  SystemClock clock;
  std::unique_lock<std::mutex> lock(state_mutex_);
  while (!leaving_ && failure_.empty()) {
    state_changed_.wait_for(lock, std::chrono::milliseconds(kPollMs), [&] { return leaving_; });
    lock.unlock();
    look_at_calls(clock.monotonic_ms());
    look_at_host_call(clock.monotonic_ms());
    lock.lock();
  }
}

NcclCollectives::~NcclCollectives() {
  {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    leaving_ = true;
  }
  state_changed_.notify_all();
  watchdog_.join();
  if (comm_ == nullptr) return;  // the process ends: a stream may use memory_ still
  for (void* handle : registered_) ncclCommDeregister(comm_, handle);
  memory_.close(comm_);
  // Peers that are gone would be waited for without end.
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + kFinalizeMs;
  ncclResult_t state = ncclCommFinalize(comm_);
  while (state == ncclInProgress && clock.monotonic_ms() < end_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) break;
  }
  if (state == ncclSuccess) {
    ncclCommDestroy(comm_);
  } else {
    ncclCommAbort(comm_);
  }
  memory_.release();
}

}  // namespace

Result<std::unique_ptr<Collectives>> make_nccl_collectives(Backend& backend, Collectives& host,
                                                           const NcclOptions& options) {
  SWAX_ASSIGN(NcclStart start, nccl_start(backend, host, options));
  auto watch = NcclCallWatch::create(kCallsPending);
  if (!watch.ok()) {
    ncclCommAbort(start.comm);
    return watch.status();
  }
  NcclOptions chosen = options;
  chosen.copy_engines = start.copy_engines;
  return std::unique_ptr<Collectives>(std::make_unique<NcclCollectives>(
      backend, host, chosen, std::move(start), std::move(watch).value()));
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "unknown";
  return to_text(version / 10000) + "." + to_text(version / 100 % 100) + "." +
         to_text(version % 100);
}

}  // namespace swax
