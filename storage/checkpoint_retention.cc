#include <algorithm>
#include <cstdio>

#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/checkpoint_layout.h"
#include "storage/checkpoint_store.h"

namespace swax {
namespace {

constexpr int64_t kReasonBytesMax = 4096;

std::string folder_of(const std::string& ckpt_root, const CheckpointName& name) {
  return join_path(ckpt_root, name.folder());
}

CheckpointEntry read_entry(const std::string& ckpt_root, const CheckpointName& name) {
  CheckpointEntry entry;
  entry.name = name;
  Result<pb::CheckpointManifest> manifest = read_committed(ckpt_root, name);
  entry.read = manifest.status().code();
  if (manifest.ok()) {
    entry.committed = true;
    entry.manifest = std::move(*manifest);
  } else if (manifest.status().code() == Code::kNotFound) {
    entry.problem = "not committed";
  } else {
    entry.problem = manifest.status().message();
  }
  const std::string bad = join_path(folder_of(ckpt_root, name), kBadFile);
  if (path_exists(bad)) {
    entry.read = Code::kOk;
    const Result<std::string> reason = read_file(bad, 2 * kReasonBytesMax);
    entry.problem = "marked bad: " +
                    (reason.ok() ? printable(*reason, kReasonBytesMax) : reason.status().message());
  }
  return entry;
}

// Half gone it must not look like a checkpoint: first the name goes, then the content.
Status remove_checkpoint(const std::string& ckpt_root, const CheckpointName& name) {
  const std::string folder = folder_of(ckpt_root, name);
  const std::string doomed = join_path(ckpt_root, std::string(kDeletingPrefix) + name.folder());
  SWAX_TRY(remove_tree(doomed));
  if (std::rename(folder.c_str(), doomed.c_str()) != 0) {
    return internal_error("rename " + folder + " to " + doomed);
  }
  SWAX_TRY(sync_dir(ckpt_root));
  SWAX_TRY(remove_tree(join_path(doomed, kCommittedFile)));
  SWAX_FAILPOINT("checkpoint.retention_half");
  SWAX_TRY(remove_tree(doomed));
  return sync_dir(ckpt_root);
}

}  // namespace

Result<std::vector<CheckpointEntry>> list_checkpoints(const std::string& ckpt_root) {
  std::vector<CheckpointEntry> entries;
  const Result<std::vector<std::string>> names = list_dir(ckpt_root);
  if (!names.ok() && names.status().code() == Code::kNotFound) return entries;
  SWAX_TRY(names);
  for (const std::string& folder : *names) {
    const Result<CheckpointName> name = parse_checkpoint_name(folder);
    if (name.ok()) entries.push_back(read_entry(ckpt_root, *name));
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name > b.name; });
  return entries;
}

Status mark_bad(const std::string& ckpt_root, const CheckpointName& name, std::string_view reason) {
  const std::string folder = folder_of(ckpt_root, name);
  if (!is_directory(folder)) return not_found("checkpoint " + folder);
  return write_atomic(join_path(folder, kBadFile), reason.substr(0, kReasonBytesMax));
}

Result<std::vector<CheckpointName>> retire_checkpoints(const std::string& ckpt_root, int keep) {
  if (keep < 1) return invalid_argument("keep=" + to_text(keep) + ": must be at least 1");
  SWAX_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(ckpt_root));
  std::vector<CheckpointName> old;
  int good = 0;
  for (const CheckpointEntry& entry : entries) {
    if (!entry.committed || !entry.problem.empty()) continue;
    if (++good > keep) old.push_back(entry.name);
  }
  std::reverse(old.begin(), old.end());  // the oldest first: an error leaves the newer ones
  for (const CheckpointName& name : old) SWAX_TRY(remove_checkpoint(ckpt_root, name));
  return old;
}

Status sweep_checkpoints(const std::string& ckpt_root, uint64_t live_epoch, uint64_t live_step) {
  const Result<std::vector<std::string>> names = list_dir(ckpt_root);
  if (!names.ok() && names.status().code() == Code::kNotFound) return ok();
  SWAX_TRY(names);
  for (const std::string& folder : *names) {
    const std::string path = join_path(ckpt_root, folder);
    if (folder.starts_with(kDeletingPrefix)) {
      SWAX_TRY(remove_tree(path));
      continue;
    }
    const Result<CheckpointName> name = parse_checkpoint_name(folder);
    if (!name.ok() || name->epoch > live_epoch) continue;
    if (name->epoch == live_epoch && name->step >= live_step) continue;
    if (path_exists(join_path(path, kCommittedFile))) continue;
    if (path_exists(join_path(path, kBadFile))) continue;
    SWAX_TRY(remove_tree(path));
  }
  return sync_dir(ckpt_root);
}

}  // namespace swax
