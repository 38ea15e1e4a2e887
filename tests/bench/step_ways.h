// The ways in which a benchmark lets ranks exchange gradients and weights, step by step: as the
// trainer does it, with the library's reduce-scatter, or not at all. Two wrappers, around the
// collectives and the backend of a trainer, that look at one switch.
#pragma once

#include <functional>

#include "kernels/backend_wrapper.h"
#include "worker/comm/collectives_wrapper.h"

namespace swax::test {

enum class Way {
  kSlots,          // all-to-all, then the sum in slot order
  kReduceScatter,  // the sum of the ranks by the library, then added as one piece
  kNothing,        // no gather, no exchange: the steps compute with what lies there
};
inline constexpr const char* kWayNames[] = {"slots", "reduce-scatter", "nothing"};

struct WaySwitch {
  Way now = Way::kSlots;
  // send [W*S] -> recv [S]; absent: kReduceScatter is not there.
  std::function<Result<Event>(Stream&, Tensor send, Tensor recv)> reduce_scatter;
  const Stream* exchange = nullptr;  // the stream of the last exchange,
  const void* piece = nullptr;       // and where its first piece was received
};

class WayCollectives final : public CollectivesWrapper {
 public:
  WayCollectives(Collectives& inner, Backend& backend, WaySwitch& ways)
      : CollectivesWrapper(inner), backend_(backend), ways_(ways) {}
  Result<Event> all_gather(Stream& s, Tensor shard, Tensor full) override {
    if (ways_.now == Way::kNothing) return backend_.record(s);
    return CollectivesWrapper::all_gather(s, shard, full);
  }
  Result<Event> all_to_all(Stream& s, Tensor send, Tensor recv) override {
    ways_.exchange = &s;
    ways_.piece = recv.data;
    if (ways_.now == Way::kNothing) return backend_.record(s);
    if (ways_.now == Way::kSlots) return CollectivesWrapper::all_to_all(s, send, recv);
    const int64_t piece = recv.elements() / size();
    return ways_.reduce_scatter(s, send, Tensor::of(recv.data, recv.dtype, {piece}));
  }

 private:
  Backend& backend_;
  WaySwitch& ways_;
};

// The library has added the pieces: of the slot sum is left what joins the first piece, and that
// this one goes where the sum belongs.
class WayBackend final : public BackendWrapper {
 public:
  WayBackend(Backend& inner, const WaySwitch& ways) : BackendWrapper(inner), ways_(ways) {}
  Status add(Stream& s, const AddArgs& a) override {
    const bool added = ways_.now == Way::kReduceScatter && &s == ways_.exchange;
    if (!added || a.b.data == ways_.piece) return BackendWrapper::add(s, a);
    if (a.out.data == a.b.data) return ok();
    void* const sum = const_cast<void*>(ways_.piece);
    return BackendWrapper::copy(s, a.out, Tensor::of(sum, a.b.dtype, {a.b.elements()}));
  }

 private:
  const WaySwitch& ways_;
};

}  // namespace swax::test
