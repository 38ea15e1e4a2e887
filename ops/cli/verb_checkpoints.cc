#include <charconv>
#include <optional>

#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"
#include "ops/cli/state_open.h"
#include "ops/cli/verbs.h"
#include "proto/base/text.h"
#include "storage/checkpoint_store.h"

namespace swax {
namespace {

struct Checkpoints {
  std::string folder;
  std::vector<CheckpointEntry> entries;  // newest first
};

Result<Checkpoints> find_checkpoints(const Args& args) {
  SWAX_ASSIGN(const OpenRun run, open_job(args));
  Checkpoints found;
  found.folder = run.state.checkpoints_folder(run.view.run.spec.job().name());
  Result<std::vector<CheckpointEntry>> entries = list_checkpoints(found.folder);
  if (entries.ok()) found.entries = std::move(entries).value();
  // A run that has not saved yet has no folder: an empty list.
  if (!entries.ok() && entries.status().code() != Code::kNotFound) return entries.status();
  return found;
}

int64_t tensor_bytes(const CheckpointEntry& entry) {
  int64_t bytes = 0;
  for (const pb::RankShard& shard : entry.manifest.ranks())
    bytes += static_cast<int64_t>(shard.bytes());
  return bytes;
}

std::string entry_state(const CheckpointEntry& entry) {
  if (!entry.problem.empty()) return entry.committed ? "damaged" : "unusable";
  return entry.committed ? "good" : "unfinished";
}

Json entry_json(const CheckpointEntry& entry) {
  const pb::CheckpointManifest& m = entry.manifest;
  return Json::object()
      .set("step", entry.name.step)
      .set("attempt", entry.name.epoch)
      .set("folder", entry.name.folder())
      .set("state", entry_state(entry))
      .set("problem", entry.problem)
      .set("committed_ms", m.committed_ms())
      .set("ranks", m.world_size())
      .set("bytes", tensor_bytes(entry))
      .set("digest", m.run_digest())
      .set("numeric_id", m.numeric_id());
}

std::string list_text(const Checkpoints& found) {
  if (found.entries.empty()) return "no checkpoints in " + one_line(found.folder) + "\n";
  TextTable table({{"step"},
                   {"attempt"},
                   {"ranks"},
                   {"size"},
                   {"state", TextTable::Align::kLeft},
                   {"digest", TextTable::Align::kLeft}});
  std::string problems;
  for (const CheckpointEntry& entry : found.entries) {
    table.add({to_text(entry.name.step), to_text(entry.name.epoch),
               entry.committed ? to_text(uint64_t{entry.manifest.world_size()}) : "",
               entry.committed ? bytes_text(tensor_bytes(entry)) : "", entry_state(entry),
               one_line(entry.manifest.run_digest(), 32)});
    if (!entry.problem.empty())
      problems += entry.name.folder() + ": " + one_line(entry.problem) + "\n";
  }
  return table.text() + (problems.empty() ? "" : "\n" + problems);
}

// The entries to verify; a STEP that is not there is an error.
Result<std::vector<const CheckpointEntry*>> chosen(const Checkpoints& found, const Args& args) {
  std::optional<uint64_t> step;
  if (!args.words().empty()) {
    const std::string& text = args.words().front();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      return invalid_argument("STEP=" + printable(text) + ": must be a step number");
    step = value;
  }
  std::vector<const CheckpointEntry*> entries;
  for (const CheckpointEntry& entry : found.entries) {
    // What was never committed is no checkpoint; what was and cannot be read counts as damaged.
    if ((!step || entry.name.step == *step) && (entry.committed || !entry.problem.empty()))
      entries.push_back(&entry);
  }
  if (entries.empty())
    return not_found(step ? "no checkpoint of step " + to_text(*step) + " in " +
                                one_line(found.folder)
                          : "no checkpoints in " + one_line(found.folder));
  return entries;
}

Status verify(const Checkpoints& found, const CheckpointEntry& entry) {
  if (!entry.problem.empty()) return data_loss(entry.problem);
  Progress progress("verify " + entry.name.folder());
  return verify_checkpoint(found.folder, entry.name,
                           [&](int64_t done, int64_t total) { progress.bytes(done, total); });
}

}  // namespace

int verb_checkpoints_list(const Args& args) {
  if (!args.has("--state") && (args.has("--job") || args.has("--store")))
    return fail(invalid_argument("checkpoints list: --job and --store go with --state"));
  if (!args.has("--state")) return verb_service_checkpoints(args);
  if (!args.words().empty()) return fail(state_and_job("checkpoints list"));
  const Result<Checkpoints> found = find_checkpoints(args);
  if (!found.ok()) return fail(found.status());
  if (args.text("--output") == "json") {
    Json list = Json::array();
    for (const CheckpointEntry& entry : found->entries) list.push(entry_json(entry));
    print_json(list);
  } else {
    print(list_text(*found));
  }
  return kExitOk;
}

int verb_checkpoints_verify(const Args& args) {
  const Result<Checkpoints> found = find_checkpoints(args);
  if (!found.ok()) return fail(found.status());
  const Result<std::vector<const CheckpointEntry*>> entries = chosen(*found, args);
  if (!entries.ok()) return fail(entries.status());
  const bool json = args.text("--output") == "json";
  Json list = Json::array();
  int exit_code = kExitOk;
  for (const CheckpointEntry* entry : *entries) {
    const Status status = verify(*found, *entry);
    if (!status.ok()) exit_code = kExitConflict;
    if (json) {
      Json item = entry_json(*entry);
      list.push(item.set("verified", status.ok()).set("error", status.message()));
    } else if (status.ok()) {
      print_line(entry->name.folder() + ": good, " + bytes_text(tensor_bytes(*entry)) +
                 " read, digest " + entry->manifest.run_digest());
    } else {
      print_line(entry->name.folder() + ": " + coloured("damaged", Colour::kBad) + ": " +
                 one_line(status.message()));
    }
  }
  if (json) print_json(list);
  return exit_code;
}

}  // namespace swax
