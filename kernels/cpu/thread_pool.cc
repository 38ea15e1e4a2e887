#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>

#include "proto/base/check.h"

namespace swax::cpu {

void check_float_mode() {
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kDenormalsAreZero = 0x0040;
  const unsigned mode = _mm_getcsr();
  SWAX_CHECK((mode & kFlushToZero) == 0);
  SWAX_CHECK((mode & kDenormalsAreZero) == 0);
}

ThreadPool::ThreadPool(int threads) {
  SWAX_CHECK(threads >= 1);
  SWAX_CHECK(threads <= kComputeThreadsMax);
  check_float_mode();
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int w = 1; w < threads; ++w) workers_.emplace_back([this, w] { work(w); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::run_pieces(int64_t pieces, Piece piece, const void* context) {
  if (workers_.empty() || pieces <= 1) {
    for (int64_t p = 0; p < pieces; ++p) piece(context, p, 0);
    return;
  }
  piece_ = piece;
  context_ = context;
  pieces_ = pieces;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_pieces(0);
  for (int busy = busy_.load(std::memory_order_acquire); busy != 0;
       busy = busy_.load(std::memory_order_acquire)) {
    busy_.wait(busy, std::memory_order_acquire);
  }
}

void ThreadPool::take_pieces(int worker) {
  if (worker >= pieces_) return;
  for (int64_t p = next_.fetch_add(1, std::memory_order_relaxed); p < pieces_;
       p = next_.fetch_add(1, std::memory_order_relaxed)) {
    piece_(context_, p, worker);
  }
}

void ThreadPool::work(int worker) {
  check_float_mode();
  uint32_t seen = 0;
  for (;;) {
    generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    take_pieces(worker);
    if (busy_.fetch_sub(1, std::memory_order_release) == 1) busy_.notify_one();
  }
}

}  // namespace swax::cpu
