// What happens in other threads, brought to the agent's main loop. The descriptor is readable while
// something waits. Threads: push from any thread; the rest from the main loop's.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/status.h"
#include "worker/agent/core/types.h"

namespace swax {

class EventQueue {
 public:
  static Result<std::unique_ptr<EventQueue>> make();  // kResourceExhausted: no descriptor is left
  int fd() const { return wake_.get(); }              // for poll(2)
  void push(agent::EventBody body);
  std::vector<agent::EventBody> take();  // all that wait, oldest first

 private:
  explicit EventQueue(Fd wake) : wake_(std::move(wake)) {}
  const Fd wake_;
  std::mutex mutex_;
  std::vector<agent::EventBody> waiting_;
};

}  // namespace swax
