// The socket thread: owns the ROUTER, moves messages between it and the queues, and does nothing
// that could take long. While the core thread waits for the disk it answers heartbeats by itself,
// with a word that changes nothing, so that a slow disk loses no worker.
// Threads: start, stop and the readers may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "coordinator/mailbox.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/wire/channel.h"

namespace swax::coord {

struct SocketOptions {
  std::string listen;
  bool insecure = false;
  std::string cluster_id;
};

class SocketLoop {
 public:
  // busy_ms: for how long the core thread has been at its present round; 0: it is idle.
  SocketLoop(SocketOptions options, Inbox& inbox, Outgoing& outgoing,
             std::function<int64_t()> busy_ms);
  ~SocketLoop();  // stops
  SocketLoop(const SocketLoop&) = delete;
  SocketLoop& operator=(const SocketLoop&) = delete;

  // Binds in the new thread; the address with the real port, or why not (ServerChannel::bind).
  Result<std::string> start();
  void wake();  // something is in `outgoing`
  void request_stop();

  struct Counts {
    std::map<std::string, uint64_t> refused;  // by reason
    uint64_t peers = 0;
  };
  Counts counts() const;

 private:
  void run(std::promise<Result<std::string>>* bound);
  void turn();
  void take(Received received);
  bool acceptable(const Received& received);
  void answer_beat(uint64_t peer);
  void note_sent(const Send& send, bool sent);
  void send_all();
  void publish();

  const SocketOptions options_;
  Inbox& inbox_;
  Outgoing& outgoing_;
  const std::function<int64_t()> busy_ms_;
  SystemClock clock_;
  std::unique_ptr<ServerChannel> channel_;    // made and ended by the thread
  std::mutex channel_mutex_;                  // wake() against the end
  std::map<uint64_t, pb::Envelope> workers_;  // by peer: how the core addresses it, no body
  std::map<std::string, uint64_t> refused_;   // by us, beside the channel's
  int64_t published_ms_ = 0;
  mutable std::mutex counts_mutex_;
  Counts counts_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace swax::coord
