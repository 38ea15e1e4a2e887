#include "worker/agent/event_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace swax {

Result<std::unique_ptr<EventQueue>> EventQueue::make() {
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return resource_exhausted("eventfd: no descriptor is left");
  return std::unique_ptr<EventQueue>(new EventQueue(std::move(wake)));
}

void EventQueue::push(agent::EventBody body) {
  {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back(std::move(body));
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // full: it is readable already
}

std::vector<agent::EventBody> EventQueue::take() {
  uint64_t ignored = 0;
  (void)!::read(wake_.get(), &ignored, sizeof ignored);
  const std::scoped_lock lock(mutex_);
  return std::exchange(waiting_, {});
}

}  // namespace swax
