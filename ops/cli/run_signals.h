// SIGINT, SIGTERM and SIGHUP as a descriptor: they are blocked in this thread and in those it
// starts later, so that a loop hears them where it waits. SIGHUP stays ignored where it was
// (nohup). Threads: make it in the main thread before other threads exist; the mask is restored at
// the end.
#pragma once

#include <signal.h>

#include "proto/base/files.h"

namespace swax {

class RunSignals {
 public:
  RunSignals();
  ~RunSignals();
  RunSignals(const RunSignals&) = delete;
  RunSignals& operator=(const RunSignals&) = delete;

  int fd() const { return fd_.get(); }  // for poll(2)
  int take();                           // the next signal that arrived; 0: none
  void wait(int ms) const;              // until one arrives, at most so long

 private:
  sigset_t before_{};
  Fd fd_;
};

}  // namespace swax
