// A fixed set of compute threads that run the pieces of one job. The caller works too, so a pool of
// one has no threads. A piece is any independent part of an op; which thread runs it decides
// nothing. run() allocates nothing. Each compute thread checks that flush-to-zero and
// denormals-are-zero are off. Threads: run() from one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace swax::cpu {

constexpr int kComputeThreadsMax = 64;

class ThreadPool {
 public:
  using Piece = void (*)(const void* context, int64_t piece, int worker);
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // piece(p, worker) for p = 0..pieces-1; worker is below min(threads, pieces). Returns when all
  // are done.
  template <typename Body>
  void run(int64_t pieces, const Body& body) {
    run_pieces(pieces, &call<Body>, &body);
  }

 private:
  template <typename Body>
  static void call(const void* body, int64_t piece, int worker) {
    (*static_cast<const Body*>(body))(piece, worker);
  }
  void run_pieces(int64_t pieces, Piece piece, const void* context);
  void work(int worker);
  void take_pieces(int worker);

  std::vector<std::thread> workers_;
  // The job: written by run() before generation_ moves, read by workers after they see it move.
  Piece piece_ = nullptr;
  const void* context_ = nullptr;
  int64_t pieces_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<int> busy_{0};  // workers that have not left the current job
  std::atomic<uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
};

// Aborts when MXCSR has FTZ or DAZ set in this thread.
void check_float_mode();

}  // namespace swax::cpu
