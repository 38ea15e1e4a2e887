// The network between the coordinator and its peers: messages are delayed, dropped, doubled,
// reordered, and cut off one way or both. A connection that was closed takes its messages along.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "proto/control.pb.h"
#include "tests/sim/swarm.h"

namespace swax::sim {

using Packet = std::shared_ptr<const pb::Envelope>;

class Network {
 public:
  using ToPeer = std::function<void(const pb::Envelope&)>;
  using ToCoordinator = std::function<void(uint64_t peer, const pb::Envelope&)>;

  Network(World& world, const Swarm& swarm) : world_(world), swarm_(swarm) {}
  size_t add_endpoint(ToPeer deliver);
  void set_coordinator(ToCoordinator deliver) { to_coordinator_ = std::move(deliver); }

  void send_to_coordinator(size_t endpoint, pb::Envelope envelope);
  void send_to_peer(uint64_t peer, pb::Envelope envelope);
  void reconnect(size_t endpoint) { ++endpoints_[endpoint].connection; }
  void reconnect_all();  // the coordinator is another process
  // Nothing passes until then; up: towards the coordinator.
  void cut(size_t endpoint, bool up, bool down, int64_t for_ms);
  void heal();

 private:
  struct Endpoint {
    ToPeer deliver;
    uint64_t connection = 1;
    int64_t up_cut_until = 0, down_cut_until = 0;
  };
  uint64_t peer_of(size_t endpoint) const {
    return endpoints_[endpoint].connection * 1000 + endpoint;
  }
  void post(size_t endpoint, bool up, const Packet& packet);
  void arrive(size_t endpoint, uint64_t connection, bool up, const Packet& packet);

  World& world_;
  const Swarm& swarm_;
  std::vector<Endpoint> endpoints_;
  ToCoordinator to_coordinator_;
};

}  // namespace swax::sim
