#include "tests/worker/comm_contract.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "proto/base/rng.h"
#include "proto/base/text.h"

namespace swax::test {
namespace {

// Element i that `from` sends to `to` (to = from for a gather) in round `round`: different
// everywhere.
int64_t element(int64_t round, int from, int to, int64_t i) {
  return ((round * 64 + from) * 64 + to) * 100'003 + i;
}

std::string fact(const char* call, int64_t round, int64_t i, int64_t got, int64_t want) {
  return std::string(call) + " round " + to_text(round) + " element " + to_text(i) + ": got " +
         to_text(got) + ", want " + to_text(want);
}

Tensor i64(std::vector<int64_t>& v, int64_t begin, int64_t count) {
  return Tensor::of(v.data() + begin, DType::kI64, {count});
}

// Fresh memory for each call, freed right after it: a rank that returns before the others have read
// its memory is seen by the address sanitizer, and by the numbers.
std::string gather_round(Collectives& c, Stream& s, int64_t round, int64_t count, bool in_place) {
  const int w = c.size(), me = c.rank();
  std::vector<int64_t> full(static_cast<size_t>(count * w), -1), apart(static_cast<size_t>(count));
  std::vector<int64_t>& shard = in_place ? full : apart;
  const int64_t begin = in_place ? me * count : 0;
  for (int64_t i = 0; i < count; ++i) {
    shard[static_cast<size_t>(begin + i)] = element(round, me, me, i);
  }
  const auto done = c.all_gather(s, i64(shard, begin, count), i64(full, 0, count * w));
  if (!done.ok()) return "all_gather: " + done.status().to_string();
  for (int64_t i = 0; i < count * w; ++i) {
    const int from = static_cast<int>(i / count);
    const int64_t want = element(round, from, from, i % count), got = full[static_cast<size_t>(i)];
    if (got != want) return fact("all_gather", round, i, got, want);
  }
  std::fill(apart.begin(), apart.end(), -2);
  return {};
}

std::string exchange_round(Collectives& c, Stream& s, int64_t round, int64_t count) {
  const int w = c.size(), me = c.rank();
  std::vector<int64_t> send(static_cast<size_t>(count * w)), recv(send.size(), -1);
  for (int64_t i = 0; i < count * w; ++i) {
    send[static_cast<size_t>(i)] = element(round, me, static_cast<int>(i / count), i % count);
  }
  const std::vector<int64_t> before = send;
  const auto done = c.all_to_all(s, i64(send, 0, count * w), i64(recv, 0, count * w));
  if (!done.ok()) return "all_to_all: " + done.status().to_string();
  if (send != before) return "all_to_all changed what it sends";
  for (int64_t i = 0; i < count * w; ++i) {
    const int64_t want = element(round, static_cast<int>(i / count), me, i % count);
    const int64_t got = recv[static_cast<size_t>(i)];
    if (got != want) return fact("all_to_all", round, i, got, want);
  }
  std::fill(send.begin(), send.end(), -2);
  return {};
}

std::string host_gather_round(Collectives& c, int64_t round, size_t bytes) {
  const auto size = static_cast<size_t>(c.size());
  std::vector<std::byte> mine(bytes), all(bytes * size);
  for (size_t i = 0; i < bytes; ++i) {
    mine[i] = static_cast<std::byte>(element(round, c.rank(), 0, static_cast<int64_t>(i)) & 0xff);
  }
  const Status done = c.all_gather_host(mine, all);
  if (!done.ok()) return "all_gather_host: " + done.to_string();
  for (size_t i = 0; i < all.size(); ++i) {
    const int from = static_cast<int>(i / bytes);
    const int64_t want = element(round, from, 0, static_cast<int64_t>(i % bytes)) & 0xff;
    const auto got = std::to_integer<int64_t>(all[i]);
    if (got != want) return fact("all_gather_host", round, static_cast<int64_t>(i), got, want);
  }
  return {};
}

// Each rank is the largest at its own index; one index is negative everywhere, one is the least
// number there is on all ranks but the last.
std::string max_round(Collectives& c, int64_t round) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  const int w = c.size(), me = c.rank();
  std::vector<int64_t> values(static_cast<size_t>(w), round), want(static_cast<size_t>(w));
  values[static_cast<size_t>(me)] = 1000 + round + me;
  for (int p = 0; p < w; ++p) want[static_cast<size_t>(p)] = 1000 + round + p;
  values.push_back(-100 - me);
  want.push_back(-100);
  values.push_back(me == w - 1 ? -7 : kLeast);
  want.push_back(-7);
  const Status done = c.max_host(values);
  if (!done.ok()) return "max_host: " + done.to_string();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == want[i]) continue;
    return fact("max_host", round, static_cast<int64_t>(i), values[i], want[i]);
  }
  return {};
}

std::string other_types(Collectives& c, Stream& s) {
  const int w = c.size();
  std::vector<float> shard(5, static_cast<float>(c.rank()) + 0.5F);
  std::vector<float> full(static_cast<size_t>(5 * w));
  const auto done = c.all_gather(s, Tensor::of(shard.data(), DType::kF32, {5}),
                                 Tensor::of(full.data(), DType::kF32, {w, 5}));
  if (!done.ok()) return "all_gather f32: " + done.status().to_string();
  for (size_t i = 0; i < full.size(); ++i) {
    if (full[i] != static_cast<float>(i / 5) + 0.5F) return "all_gather f32: wrong value";
  }
  std::vector<uint8_t> send(static_cast<size_t>(3 * w), static_cast<uint8_t>(c.rank()));
  std::vector<uint8_t> recv(send.size());
  const auto sent = c.all_to_all(s, Tensor::of(send.data(), DType::kU8, {3 * w}),
                                 Tensor::of(recv.data(), DType::kU8, {3 * w}));
  if (!sent.ok()) return "all_to_all u8: " + sent.status().to_string();
  for (size_t i = 0; i < recv.size(); ++i) {
    if (recv[i] != i / 3) return "all_to_all u8: wrong value";
  }
  return {};
}

}  // namespace

std::string collectives_contract(Collectives& c) {
  NoStream s;
  if (c.rank() < 0 || c.rank() >= c.size()) return "rank " + to_text(c.rank()) + " out of range";
  std::vector<std::byte> buffer(64);
  const Status registered = c.register_buffer(Tensor::of(buffer.data(), DType::kU8, {64}));
  if (!registered.ok()) return "register_buffer: " + registered.to_string();
  if (std::string bad = other_types(c, s); !bad.empty()) return bad;
  for (int64_t round = 0; round < 60; ++round) {
    // The same call on all ranks, its size drawn from the round.
    const PhiloxBlock draw = random_block(7, Purpose::kTest, static_cast<uint64_t>(round));
    const int64_t count = 1 + draw[1] % (draw[2] % 4 == 0 ? 5000 : 9);
    std::string bad;
    switch (draw[0] % 6) {
      case 0:
        bad = gather_round(c, s, round, count, false);
        break;
      case 1:
        bad = gather_round(c, s, round, count, true);
        break;
      case 2:
        bad = exchange_round(c, s, round, count);
        break;
      case 3:
        bad = host_gather_round(c, round, static_cast<size_t>(count - 1));
        break;
      case 4:
        bad = max_round(c, round);
        break;
      default:
        if (const Status done = c.barrier(); !done.ok()) bad = "barrier: " + done.to_string();
    }
    if (!bad.empty()) return "rank " + to_text(c.rank()) + ": " + bad;
  }
  return {};
}

}  // namespace swax::test
