// The node's end of the ranks' line: a unix stream socket with frames of proto/frame.h. A peer
// first says who it is: a rank (RankMessage.hello), or a launch proxy of mpirun
// (Envelope.launch_remote). The end of a rank's connection is its death: it is told with the exit
// status, which the kernel knows a moment later. A rank whose process is stopped is told too. Peers
// of other users are refused. Threads: one.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/status.h"
#include "proto/frame.h"
#include "worker/agent/core/types.h"
#include "worker/agent/process.h"

namespace swax {

// kInvalidArgument: the path has more than the 107 bytes that a unix socket's name may have.
Status check_socket_path(const std::string& path);

class RankSocket {
 public:
  static Result<std::unique_ptr<RankSocket>> listen(const std::string& path);
  ~RankSocket();  // removes the name
  void add_poll(std::vector<pollfd>* fds) const;
  // Takes what has arrived, sends what waits. Never blocks.
  std::vector<agent::EventBody> look(int64_t now_ms);
  // To ranks that have said hello; the newest such connection of a rank only.
  void tell(const agent::TellRank& command);
  void answer(const agent::ProxyDone& command);

 private:
  struct Peer {
    Fd socket;
    FrameBuffer incoming;
    std::string outgoing;
    int64_t since_ms = 0;  // accepted, then the end of its connection
    bool rank = false, proxy = false;
    bool refused = false;  // told to go; its end means nothing
    bool ended = false;    // waits for the exit status
    int looks = 0;         // since then
    bool halted = false;   // its process was stopped when it was looked at
    int64_t looked_ms = 0;
    pb::RankHello hello;
    ProcessId process;
    Fd process_fd;
  };

  RankSocket(std::string path, Fd listener) : path_(std::move(path)), fd_(std::move(listener)) {}
  void accept_peers(int64_t now_ms);
  void read_peer(uint64_t id, Peer* peer, int64_t now_ms, std::vector<agent::EventBody>* out);
  bool take_frame(uint64_t id, Peer* peer, const std::string& payload,
                  std::vector<agent::EventBody>* out);
  bool take_first(uint64_t id, Peer* peer, const std::string& payload,
                  std::vector<agent::EventBody>* out);
  static void write_peer(Peer* peer);
  static void look_at_process(Peer* peer, int64_t now_ms, std::vector<agent::EventBody>* out);
  static void end_peer(Peer* peer, int64_t now_ms);
  static bool finish_peer(Peer& peer, int64_t now_ms, std::vector<agent::EventBody>* out);
  Peer* newest(const agent::TellRank& command, uint32_t rank);

  const std::string path_;
  const Fd fd_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Peer> peers_;
};

}  // namespace swax
