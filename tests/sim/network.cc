#include "tests/sim/network.h"

#include <algorithm>

namespace swax::sim {

size_t Network::add_endpoint(ToPeer deliver) {
  Endpoint endpoint;
  endpoint.deliver = std::move(deliver);
  endpoints_.push_back(std::move(endpoint));
  return endpoints_.size() - 1;
}

void Network::send_to_coordinator(size_t endpoint, pb::Envelope envelope) {
  post(endpoint, true, std::make_shared<const pb::Envelope>(std::move(envelope)));
}

void Network::send_to_peer(uint64_t peer, pb::Envelope envelope) {
  const size_t endpoint = peer % 1000;
  if (peer_of(endpoint) != peer) return;  // closed
  post(endpoint, false, std::make_shared<const pb::Envelope>(std::move(envelope)));
}

void Network::post(size_t endpoint, bool up, const Packet& packet) {
  int copies = 1;
  int64_t delay_ms = world_.between(swarm_.delay_min_ms, swarm_.delay_max_ms);
  if (world_.faults_on()) {
    const Endpoint& e = endpoints_[endpoint];
    if ((up ? e.up_cut_until : e.down_cut_until) > world_.now()) return;
    if (world_.chance(swarm_.drop)) return world_.fired(Fault::kDrop);
    if (world_.chance(swarm_.duplicate)) {
      world_.fired(Fault::kDuplicate);
      copies = 2;
    }
    if (world_.chance(swarm_.reorder)) {
      world_.fired(Fault::kReorder);
      delay_ms += world_.between(50, 3000);
    }
  }
  const uint64_t connection = endpoints_[endpoint].connection;
  for (int i = 0; i < copies; ++i) {
    const int64_t extra_ms = i == 0 ? 0 : world_.between(0, 5000);
    world_.after(delay_ms + extra_ms, [this, endpoint, connection, up, packet] {
      arrive(endpoint, connection, up, packet);
    });
  }
}

void Network::arrive(size_t endpoint, uint64_t connection, bool up, const Packet& packet) {
  if (endpoints_[endpoint].connection != connection) return;
  world_.mix(static_cast<uint64_t>(world_.now()) * 64 + static_cast<uint64_t>(packet->body_case()));
  world_.mix(packet->sequence() * 128 + endpoint * 2 + (up ? 1 : 0));
  if (world_.tracing() && !packet->has_heartbeat() && !packet->has_heartbeat_reply())
    world_.trace((up ? "to coordinator from " : "from coordinator to ") + std::to_string(endpoint) +
                 " " + packet->ShortDebugString().substr(0, 300));
  if (up) {
    to_coordinator_(peer_of(endpoint), *packet);
  } else {
    endpoints_[endpoint].deliver(*packet);
  }
}

void Network::reconnect_all() {
  for (Endpoint& endpoint : endpoints_) ++endpoint.connection;
}

void Network::cut(size_t endpoint, bool up, bool down, int64_t for_ms) {
  Endpoint& e = endpoints_[endpoint];
  if (up) e.up_cut_until = std::max(e.up_cut_until, world_.now() + for_ms);
  if (down) e.down_cut_until = std::max(e.down_cut_until, world_.now() + for_ms);
}

void Network::heal() {
  for (Endpoint& endpoint : endpoints_) endpoint.up_cut_until = endpoint.down_cut_until = 0;
}

}  // namespace swax::sim
