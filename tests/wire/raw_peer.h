// A peer without libzmq: a TCP socket that speaks ZMTP 3.0 (NULL mechanism) as far as a test wants,
// so that it can lie. Threads: one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/files.h"

namespace swax {

// Limits of time and resident memory mean nothing where every access is watched.
#ifdef __SANITIZE_THREAD__
constexpr bool kUnderThreadSanitizer = true;
#else
constexpr bool kUnderThreadSanitizer = false;
#endif

class RawPeer {
 public:
  // To tcp://127.0.0.1:PORT. With `routing_id` it names itself, which an honest peer never does.
  explicit RawPeer(const std::string& address, std::string_view routing_id = "");
  bool connected() const { return fd_.valid(); }
  // One message of one frame. False: the other side closed.
  bool send(std::string_view bytes);
  bool send_parts(const std::vector<std::string>& parts);
  // A frame header that promises `promised` bytes, and fewer bytes.
  bool send_half(uint64_t promised, std::string_view bytes);
  // Bytes that arrive within the time, framing and all.
  std::string receive(int timeout_ms);

 private:
  bool wait(int timeout_ms);
  bool write_all(std::string_view bytes);
  Fd fd_;
};

}  // namespace swax
