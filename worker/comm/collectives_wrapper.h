// Forwards every call to other collectives. Tests and tools override the calls that they distort or
// count. Threads: as the inner collectives, which must outlive the wrapper.
#pragma once

#include "worker/comm/collectives.h"

namespace swax {

class CollectivesWrapper : public Collectives {
 public:
  explicit CollectivesWrapper(Collectives& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<Buffer> allocate(Backend& backend, int64_t bytes) override {
    return inner_.allocate(backend, bytes);
  }
  Status register_buffer(Tensor buffer) override { return inner_.register_buffer(buffer); }
  Result<Event> all_gather(Stream& s, Tensor shard, Tensor full) override {
    return inner_.all_gather(s, shard, full);
  }
  Result<Event> all_to_all(Stream& s, Tensor send, Tensor recv) override {
    return inner_.all_to_all(s, send, recv);
  }
  Status all_gather_host(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return inner_.all_gather_host(mine, all);
  }
  Status max_host(std::span<int64_t> values) override { return inner_.max_host(values); }
  Status barrier() override { return inner_.barrier(); }
  void abort(std::string_view reason) override { inner_.abort(reason); }

 private:
  Collectives& inner_;
};

}  // namespace swax
