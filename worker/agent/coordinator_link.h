// The agent's line to its coordinator: a thread that owns the channel. What must arrive is sent
// again by its owner, so messages that find no room are dropped.
// While the main loop is late (a disk that does not answer), the newest heartbeat is sent again as
// it is: the coordinator takes a copy for a sign of life and for nothing else, and loses no worker
// whose ranks train on. Not for ever: a main loop that hangs is a worker that is lost.
// Threads: send, alive, reconnect, drain and trouble may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/wire/channel.h"
#include "worker/agent/event_queue.h"

namespace swax {

// With a beat a second and a look every 200 ms, a copy comes before two seconds without one are
// over.
struct LinkTiming {
  int64_t late_ms = 500;     // without a word of the main loop: it is late
  int64_t copy_ms = 1000;    // between the copies of a heartbeat
  int64_t limit_ms = 60000;  // late for longer: no more copies
};

class CoordinatorLink {
 public:
  // kInvalidArgument: the address. Nobody needs to listen there yet.
  static Result<std::unique_ptr<CoordinatorLink>> start(const std::string& address,
                                                        EventQueue& events,
                                                        const LinkTiming& timing = {});
  ~CoordinatorLink();
  void alive();  // the main loop goes on: to be called several times a second
  void send(pb::Envelope envelope);
  void reconnect();              // a new socket, now
  void drain(int64_t limit_ms);  // waits until everything was given to the socket
  std::string trouble() const;   // why nothing is heard; empty: connected

 private:
  CoordinatorLink(EventQueue& events, const LinkTiming& timing)
      : events_(events), timing_(timing) {}
  void run(const std::string& address, std::promise<Status> opened);
  void work(ClientChannel& channel);
  void note(const pb::Envelope& sent);
  bool copy_is_due();

  EventQueue& events_;
  const LinkTiming timing_;
  SystemClock clock_;
  std::atomic<int64_t> alive_ms_ = 0;
  // Of the thread: what is copied, and when it, or a copy, was sent.
  std::optional<pb::Envelope> beat_;
  int64_t beat_ms_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable emptied_;
  std::deque<pb::Envelope> outgoing_;
  bool reconnect_ = false, stop_ = false;
  std::string trouble_;
  ClientChannel* channel_ = nullptr;  // while the thread runs
  std::thread thread_;
};

}  // namespace swax
