#include "tests/worker/collectives_lazy_device.h"

#include <algorithm>

#include "proto/base/rng.h"

namespace swax::test {
namespace {

struct LazyStream final : Stream {
  LazyStream(LazyDevice& d, const LazyBackend* o) : device(d), owner(o), queue(d.add_stream()) {}
  ~LazyStream() override {
    device.drain(queue);
    device.remove_stream(queue);
  }
  LazyDevice& device;
  const LazyBackend* owner;
  LazyDevice::Queue* queue;
};

// The CPU backend runs at once and looks at no stream.
struct NoWork final : Stream {};

LazyStream& lazy(Stream& s) { return static_cast<LazyStream&>(s); }

}  // namespace

LazyDevice::Queue* LazyDevice::add_stream() {
  const std::lock_guard<std::mutex> lock(mutex_);
  queues_.push_back(std::make_unique<Queue>());
  return queues_.back().get();
}

void LazyDevice::remove_stream(const Queue* queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(queues_, [&](const auto& q) { return q.get() == queue; });
}

void LazyDevice::enqueue(Queue* queue, Work work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue->push_back(std::move(work));
  if (!eager_) return;
  const uint32_t pieces = random_block(seed_, Purpose::kTest, draws_++)[0] % 3;
  for (uint32_t i = 0; i < pieces; ++i) run_one();
}

bool LazyDevice::drain(const Queue* queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!queue->empty()) {
    if (!run_one()) return false;
  }
  return true;
}

int64_t LazyDevice::pieces_run() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pieces_;
}

bool LazyDevice::run_one() {
  const size_t first = random_block(seed_, Purpose::kTest, draws_++)[0];
  for (size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = *queues_[(first + i) % queues_.size()];
    if (!runnable(queue)) continue;
    const Work work = std::move(queue.front());
    queue.pop_front();
    if (work.run) work.run();
    if (work.records) *work.records = true;
    ++pieces_;
    return true;
  }
  return false;
}

Result<std::unique_ptr<Stream>> LazyBackend::make_stream() {
  return std::unique_ptr<Stream>(std::make_unique<LazyStream>(device_, this));
}

Event LazyBackend::record(Stream& s) {
  events_.push_back(std::make_shared<bool>(false));
  device_.enqueue(lazy(s).queue, {.run = {}, .records = events_.back(), .awaits = {}});
  return {events_.size()};
}

void LazyBackend::wait(Stream& s, Event e) {
  if (e.id == 0 || (forget_foreign_waits && lazy(s).owner != this)) return;
  SWAX_CHECK(e.id <= events_.size());
  device_.enqueue(lazy(s).queue, {.run = {}, .records = {}, .awaits = events_[e.id - 1]});
}

Status LazyBackend::sync(Stream& s) {
  return device_.drain(lazy(s).queue) ? ok() : internal_error("the streams wait for each other");
}

Status LazyBackend::copy(Stream& s, Tensor to, Tensor from) {
  if (refuse_copy) return internal_error("the device is lost");
  device_.enqueue(lazy(s).queue, {.run =
                                      [this, to, from] {
                                        NoWork none;
                                        SWAX_CHECK(inner().copy(none, to, from).ok());
                                      },
                                  .records = {},
                                  .awaits = {}});
  return ok();
}

Status LazyBackend::fill(Stream& s, const FillArgs& a) {
  device_.enqueue(lazy(s).queue, {.run =
                                      [this, a] {
                                        NoWork none;
                                        SWAX_CHECK(inner().fill(none, a).ok());
                                      },
                                  .records = {},
                                  .awaits = {}});
  return ok();
}

}  // namespace swax::test
