// The agent's line to its coordinator: a thread that owns the channel. What must arrive is sent
// again by its owner, so messages that find no room are dropped.
// Threads: send, reconnect, drain and trouble may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "proto/base/status.h"
#include "proto/wire/channel.h"
#include "worker/agent/event_queue.h"

namespace swax {

class CoordinatorLink {
 public:
  // kInvalidArgument: the address. Nobody needs to listen there yet.
  static Result<std::unique_ptr<CoordinatorLink>> start(const std::string& address,
                                                        EventQueue& events);
  ~CoordinatorLink();
  void send(pb::Envelope envelope);
  void reconnect();              // a new socket, now
  void drain(int64_t limit_ms);  // waits until everything was given to the socket
  std::string trouble() const;   // why nothing is heard; empty: connected

 private:
  explicit CoordinatorLink(EventQueue& events) : events_(events) {}
  void run(const std::string& address, std::promise<Status> opened);
  void work(ClientChannel& channel);

  EventQueue& events_;
  mutable std::mutex mutex_;
  std::condition_variable emptied_;
  std::deque<pb::Envelope> outgoing_;
  bool reconnect_ = false, stop_ = false;
  std::string trouble_;
  ClientChannel* channel_ = nullptr;  // while the thread runs
  std::thread thread_;
};

}  // namespace swax
