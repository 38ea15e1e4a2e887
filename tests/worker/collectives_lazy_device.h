// A simulated device: what is enqueued on a stream runs later, in an order drawn from a seed that
// only the streams' own order and the events bind. Several backends share it as several ranks share
// a GPU. What runs is the CPU backend. Threads: one per backend; the device runs one piece of work
// at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/backend_wrapper.h"

namespace swax::test {

class LazyDevice {
 public:
  // `eager`: some work runs whenever something is enqueued; otherwise only in a sync.
  LazyDevice(uint64_t seed, bool eager) : seed_(seed), eager_(eager) {}

  struct Work {
    std::function<void()> run;              // empty: a record or a wait
    std::shared_ptr<bool> records, awaits;  // the event's "complete"
  };
  using Queue = std::deque<Work>;

  Queue* add_stream();
  void remove_stream(const Queue* queue);
  void enqueue(Queue* queue, Work work);
  // Runs until the stream is empty; false when everything waits for something that never comes.
  bool drain(const Queue* queue);
  int64_t pieces_run() const;

 private:
  bool run_one();  // false: nothing can run
  static bool runnable(const Queue& queue) {
    return !queue.empty() && (!queue.front().awaits || *queue.front().awaits);
  }

  uint64_t seed_;
  bool eager_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Queue>> queues_;
  uint64_t draws_ = 0;
  int64_t pieces_ = 0;
};

// The copies, fills and events of one rank. Event numbers are the backend's own, as with a GPU.
class LazyBackend final : public BackendWrapper {
 public:
  LazyBackend(LazyDevice& device, Backend& cpu) : BackendWrapper(cpu), device_(device) {}
  BackendKind kind() const override { return BackendKind::kCuda; }
  Result<std::unique_ptr<Stream>> make_stream() override;
  Event record(Stream& s) override;
  void wait(Stream& s, Event e) override;
  Status sync(Stream& s) override;
  Status copy(Stream& s, Tensor to, Tensor from) override;
  Status fill(Stream& s, const FillArgs& a) override;

  // A planted fault: waits of the streams of other backends are forgotten.
  bool forget_foreign_waits = false;
  // A planted fault: the next copy is refused.
  bool refuse_copy = false;

 private:
  LazyDevice& device_;
  std::vector<std::shared_ptr<bool>> events_;  // event number n is events_[n - 1]
};

}  // namespace swax::test
