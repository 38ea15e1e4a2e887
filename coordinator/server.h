// The coordinator as a process: folders, journal, threads. The core decides (coordinator/core);
// this moves bytes, time and files.
//   socket thread  ROUTER <-> inbox and outgoing queue
//   core thread    inbox -> step -> one synced batch -> commands
//   file thread    COMMITTED files and retention
// Threads: one owner; stop() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/core/types.h"
#include "proto/base/status.h"

namespace swax::coord {

struct ServerOptions {
  std::string state;   // folder; made when missing
  std::string listen;  // tcp://127.0.0.1:PORT, 0: any
  std::string store;   // empty: STATE/store
  bool insecure = false;
  Config timing{};  // times and limits; the rest is filled in
};

class Server {
 public:
  // Reads the state and serves from then on. kFailedPrecondition: another coordinator has this
  // state, or the address is in use; kInvalidArgument: the address; kResourceExhausted: limits of
  // this process; kDataLoss: the state as a whole cannot be read (a damaged job only is held).
  static Result<std::unique_ptr<Server>> open(const ServerOptions& options);
  virtual ~Server() = default;                     // stops and waits
  virtual const std::string& address() const = 0;  // with the real port
  // Ends the threads. False: they did not end within the time (a stuck disk); the process should
  // then end without destroying the server. Nothing that was acknowledged is lost.
  virtual bool stop(int64_t timeout_ms) = 0;
};

}  // namespace swax::coord
