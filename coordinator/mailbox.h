// The queues between the coordinator's threads. Inbox: socket and file thread -> core thread.
// Outgoing: core thread -> socket thread. Both are bounded: the inbox refuses what does not fit
// (who sent it sends again), the outgoing queue makes the core wait, never the socket. Threads:
// every method may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <variant>
#include <vector>

#include "coordinator/core/types.h"

namespace swax::coord {

// Messages by peer; peers are served in turn, so that a flood from one delays the others by one
// message each.
class FairQueue {
 public:
  FairQueue(size_t per_peer_max, size_t bytes_max)
      : per_peer_max_(per_peer_max), bytes_max_(bytes_max) {}
  bool push(Message message);  // false: full
  bool empty() const { return turns_.empty(); }
  Message pop();

 private:
  struct Item {
    Message message;
    size_t bytes = 0;  // on the wire; in memory up to 40 times as many (many empty parts)
  };
  const size_t per_peer_max_, bytes_max_;
  size_t bytes_ = 0;
  std::map<uint64_t, std::deque<Item>> peers_;
  std::deque<uint64_t> turns_;  // peers with messages
};

class Inbox {
 public:
  Inbox();
  bool push(Message message);       // false: full; by socket thread
  void push_done(EventBody event);  // by file thread: as many as it was given commands
  void stop();

  // Waits until something is there, at most timeout_ms. What is done first, then messages of
  // workers, then requests of clients.
  std::vector<EventBody> take(int64_t timeout_ms, size_t messages_max, size_t requests_max);
  // Requests only: for the time in which nothing can be stored.
  std::vector<Message> take_requests(int64_t timeout_ms, size_t max);
  bool stopped() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<EventBody> done_;
  FairQueue workers_, clients_;
  bool stopped_ = false;
};

class Outgoing {
 public:
  using Item = std::variant<Send, ForgetPeer>;
  // Waits while the queue is full and not stopped.
  void push(std::vector<Item> items);
  std::vector<Item> take();
  void stop();

 private:
  std::mutex mutex_;
  std::condition_variable drained_;
  std::vector<Item> items_;
  size_t bytes_ = 0;
  bool stopped_ = false;
};

}  // namespace swax::coord
