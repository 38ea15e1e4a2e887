#include "ops/cli/run_signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace swax {

RunSignals::RunSignals() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  ::sigaddset(&wanted, SIGINT);
  ::sigaddset(&wanted, SIGTERM);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaddset(&wanted, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
  fd_ = Fd(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
}

RunSignals::~RunSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int RunSignals::take() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

void RunSignals::wait(int ms) const {
  pollfd item{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  ::poll(&item, 1, ms);
}

}  // namespace swax
