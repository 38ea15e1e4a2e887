#include "worker/agent/backlog.h"

#include <algorithm>
#include <variant>

namespace swax {
namespace {

// Reports are in the order of their indexes. One that was to be added and is dropped again never
// needs to reach the disk.
void drop(agent::SaveOutbox* into, uint64_t index) {
  const auto it =
      std::lower_bound(into->add.begin(), into->add.end(), index,
                       [](const pb::AttemptReport& r, uint64_t i) { return r.index() < i; });
  if (it != into->add.end() && it->index() == index) {
    into->add.erase(it);
  } else {
    into->drop.push_back(index);
  }
}

// False: both accept an epoch, a batch has room for one.
bool merge(agent::SaveOutbox* into, agent::SaveOutbox* next) {
  if (!into->job.empty() && !next->job.empty()) return false;
  for (const uint64_t index : next->drop) drop(into, index);
  std::move(next->add.begin(), next->add.end(), std::back_inserter(into->add));
  into->drop_through = std::max(into->drop_through, next->drop_through);
  std::erase_if(into->add,
                [into](const pb::AttemptReport& r) { return r.index() <= into->drop_through; });
  into->next_report = std::max(into->next_report, next->next_report);
  if (next->job.empty()) return true;
  into->job = std::move(next->job);
  into->accepted_epoch = next->accepted_epoch;
  return true;
}

}  // namespace

void shorten_backlog(std::deque<agent::Command>* waiting,
                     const std::function<void(pb::Envelope)>& send) {
  std::deque<agent::Command> kept;
  agent::SaveOutbox* batch = nullptr;  // the newest one in `kept`
  for (agent::Command& command : *waiting) {
    if (auto* save = std::get_if<agent::SaveOutbox>(&command)) {
      if (batch != nullptr && merge(batch, save)) continue;
      kept.push_back(std::move(command));
      batch = &std::get<agent::SaveOutbox>(kept.back());
      continue;
    }
    auto* sends = std::get_if<agent::Send>(&command);
    if (sends != nullptr && sends->envelope.has_attempt_reports()) continue;
    if (sends != nullptr && (sends->envelope.has_heartbeat() || sends->envelope.has_hello())) {
      send(std::move(sends->envelope));
    } else {
      kept.push_back(std::move(command));
    }
  }
  *waiting = std::move(kept);
}

}  // namespace swax
