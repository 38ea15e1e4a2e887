#include "tests/sim/world.h"

#include <algorithm>
#include <cstdio>

#include "proto/base/text.h"

namespace swax::sim {

const char* fault_name(Fault fault) {
  constexpr std::array<const char*, kFaults> kNames = {"drop",
                                                       "duplicate",
                                                       "reorder",
                                                       "partition_one_way",
                                                       "partition_full",
                                                       "agent_crash",
                                                       "agent_crash_receive",
                                                       "agent_crash_journal",
                                                       "agent_crash_synced",
                                                       "agent_crash_send",
                                                       "agent_crash_sent",
                                                       "agent_write_lost",
                                                       "agent_write_torn",
                                                       "agent_pause",
                                                       "agent_stop",
                                                       "rank_crash",
                                                       "rank_crash_receive",
                                                       "rank_crash_journal",
                                                       "rank_crash_send",
                                                       "rank_exit",
                                                       "rank_hang",
                                                       "save_failed",
                                                       "crash_receive",
                                                       "crash_journal",
                                                       "crash_send",
                                                       "write_lost",
                                                       "write_torn",
                                                       "commit_failed",
                                                       "coordinator_pause",
                                                       "clock_jump",
                                                       "impostor",
                                                       "outage"};
  return kNames[static_cast<size_t>(fault)];
}

void World::after(int64_t delay_ms, std::function<void()> run) {
  queue_.push_back(
      {.at = now_ + std::max<int64_t>(0, delay_ms), .order = order_++, .run = std::move(run)});
  std::push_heap(queue_.begin(), queue_.end(), later);
}

void World::run_until(int64_t end_ms, const std::function<bool()>& done) {
  while (!queue_.empty() && queue_.front().at <= end_ms && !violated()) {
    std::pop_heap(queue_.begin(), queue_.end(), later);
    const Item item = std::move(queue_.back());
    queue_.pop_back();
    now_ = item.at;
    ++events_;
    item.run();
    if (events_ % 64 == 0 && done()) return;
  }
  if (!violated()) now_ = std::max(now_, end_ms);
}

uint32_t World::word() {
  if (drawn_ % 4 == 0) block_ = random_block(seed_, Purpose::kTest, drawn_ / 4);
  return block_[drawn_++ % 4];
}

int64_t World::between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low + 1)));
}

void World::trace(const std::string& line) const {
  std::printf("%10.3f %s\n", static_cast<double>(now_) / 1000.0, line.c_str());
}

void World::fired(Fault fault) {
  ++counts_[static_cast<size_t>(fault)];
  mix(static_cast<uint64_t>(fault));
  if (trace_ && fault > Fault::kReorder) trace(std::string("fault ") + fault_name(fault));
}

void World::violation(std::string_view checker, const std::string& text) {
  if (violated()) return;
  checker_ = checker;
  violation_ = "at " + duration_text(now_) + ": " + text;
  if (trace_) trace("VIOLATION " + checker_ + ": " + text);
}

}  // namespace swax::sim
