// Users: each submits a job with one request id until it is acknowledged; some cancel or resume it.
#pragma once

#include <string>

#include "tests/sim/network.h"
#include "tests/sim/oracle.h"

namespace swax::sim {

class Clients {
 public:
  Clients(World& world, Network& network, Oracle& oracle, const SimJobs& jobs)
      : world_(world), network_(network), oracle_(oracle), jobs_(jobs) {}
  void start();
  bool satisfied() const { return open_ == 0; }

 private:
  enum class Verb { kSubmit, kCancel, kResume };
  struct Asker {
    size_t endpoint = 0;
    Verb verb = Verb::kSubmit;
    pb::Envelope request;
    bool answered = false;
  };
  void plan(const SimJob& job, Verb verb, int64_t at_ms);
  void ask(size_t index);
  void on_reply(size_t index, const pb::Envelope& envelope);

  World& world_;
  Network& network_;
  Oracle& oracle_;
  const SimJobs& jobs_;
  std::vector<Asker> askers_;
  size_t open_ = 0;
};

}  // namespace swax::sim
