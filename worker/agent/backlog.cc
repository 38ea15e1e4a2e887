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

// Whether nothing that must be on disk first follows from it.
bool passes(const agent::Command& command) {
  if (const auto* send = std::get_if<agent::Send>(&command)) {
    const pb::Envelope& e = send->envelope;
    return e.has_heartbeat() || e.has_hello() || e.has_goodbye();
  }
  return std::holds_alternative<agent::Reconnect>(command) ||
         std::holds_alternative<agent::ReadNonce>(command) ||
         std::holds_alternative<agent::TellRank>(command) ||
         std::holds_alternative<agent::Kill>(command) ||
         std::holds_alternative<agent::Exit>(command);
}

bool starts(const agent::Command& command, const agent::Kill& kill) {
  const auto same = [&kill](const auto& of) {
    return of.job() == kill.job && of.epoch() == kill.epoch;
  };
  if (const auto* prepare = std::get_if<agent::Prepare>(&command)) return same(prepare->start);
  if (const auto* launch = std::get_if<agent::Launch>(&command)) return same(launch->start);
  if (const auto* remote = std::get_if<agent::RunRemote>(&command)) return same(remote->launch);
  return false;
}

// What waits is looked through without the commands that a Kill behind them makes void.
void drop_killed(std::deque<agent::Command>* waiting) {
  std::vector<agent::Kill> kills;
  for (const agent::Command& command : *waiting)
    if (const auto* kill = std::get_if<agent::Kill>(&command)) kills.push_back(*kill);
  for (const agent::Kill& kill : kills)
    std::erase_if(*waiting, [&kill](const agent::Command& c) { return starts(c, kill); });
}

}  // namespace

void shorten_backlog(std::deque<agent::Command>* waiting,
                     const std::function<void(agent::Command)>& pass) {
  drop_killed(waiting);
  std::deque<agent::Command> kept;
  agent::SaveOutbox* batch = nullptr;  // the newest one in `kept`
  for (agent::Command& command : *waiting) {
    if (auto* save = std::get_if<agent::SaveOutbox>(&command)) {
      if (batch != nullptr && merge(batch, save)) continue;
      kept.push_back(std::move(command));
      batch = &std::get<agent::SaveOutbox>(kept.back());
      continue;
    }
    const auto* send = std::get_if<agent::Send>(&command);
    if (send != nullptr && send->envelope.has_attempt_reports()) continue;
    if (passes(command)) {
      pass(std::move(command));
    } else {
      kept.push_back(std::move(command));
    }
  }
  *waiting = std::move(kept);
}

}  // namespace swax
