#include "tests/sim/store.h"

namespace swax::sim {

void Store::write_shard(const std::string& job, coord::SaveKey key, uint32_t rank, uint64_t bits) {
  saves_[job][key].shards[rank] = bits;
}

void Store::commit(const std::string& job, coord::SaveKey key, uint32_t world_size) {
  Save& save = saves_[job][key];
  if (save.committed) return;
  oracle_.on_commit(job, key.first, key.second, save.shards, world_size);
  save.committed = true;
}

std::optional<Store::Loaded> Store::newest(const std::string& job) const {
  const auto it = saves_.find(job);
  if (it == saves_.end()) return {};
  for (auto save = it->second.rbegin(); save != it->second.rend(); ++save)
    if (save->second.committed && !save->second.shards.empty())
      return Loaded{.step = save->first.first, .bits = save->second.shards.begin()->second};
  return {};
}

std::map<coord::SaveKey, uint32_t> Store::committed(const std::string& job) const {
  std::map<coord::SaveKey, uint32_t> ranks;
  const auto saves = saves_.find(job);
  if (saves == saves_.end()) return ranks;
  for (const auto& [key, save] : saves->second)
    if (save.committed) ranks[key] = static_cast<uint32_t>(save.shards.size());
  return ranks;
}

std::vector<coord::SaveKey> Store::retire(const std::string& job, int keep, int keep_promised) {
  std::vector<coord::SaveKey> removed;
  auto& saves = saves_[job];
  int kept = 0;
  for (auto save = saves.rbegin(); save != saves.rend(); ++save) {
    if (!save->second.committed || ++kept <= keep) continue;
    removed.push_back(save->first);
    oracle_.on_removed(job, save->first.first, keep, keep_promised);
  }
  for (const coord::SaveKey& key : removed) saves.erase(key);
  return removed;
}

}  // namespace swax::sim
