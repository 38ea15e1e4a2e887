#include "worker/data/build.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <thread>

#include "proto/base/clock.h"
#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/import.h"
#include "worker/data/import_kjv.h"
#include "worker/data/split_writer.h"

namespace swax {
namespace {

constexpr std::string_view kLockName = ".build.lock";
constexpr std::string_view kBuildingPrefix = ".building-";
constexpr int64_t kLockWaitMsMax = 6LL * 3600 * 1000;
constexpr int64_t kShardBytesMin = 64 * 1024;
constexpr size_t kNameBytesMax = 63;

Status check_options(const BuildOptions& o) {
  if (o.name.empty() || o.name.size() > kNameBytesMax || !valid_utf8(o.name)) {
    return invalid_argument("name=" + printable(o.name) + ": must be 1..63 bytes of UTF-8");
  }
  if (o.inputs.empty()) return invalid_argument("inputs: must name a file or debian:kjv");
  if (!(o.validation_fraction >= 0.0 && o.validation_fraction < 1.0)) {
    return invalid_argument("validation_fraction=" + to_text(o.validation_fraction) +
                            ": must be in [0, 1)");
  }
  if (o.shard_bytes_max < kShardBytesMin) {
    return invalid_argument("shard_bytes_max=" + to_text(o.shard_bytes_max) + ": must be from " +
                            to_text(kShardBytesMin));
  }
  return ok();
}

// The lock goes with the process, so a dead builder never holds it.
Result<Fd> wait_for_lock(const std::string& path) {
  constexpr int64_t kPauseMs = 20;
  SystemClock clock;
  const int64_t begin_ms = clock.monotonic_ms();
  for (bool said = false;;) {
    Result<Fd> lock = lock_file(path);
    if (lock.ok() || lock.status().code() != Code::kFailedPrecondition) return lock;
    // The same code says that the file may not be opened; waiting would not help.
    if (faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) != 0) return lock;
    const int64_t waited_ms = clock.monotonic_ms() - begin_ms;
    if (waited_ms > kLockWaitMsMax) {
      return unavailable(path + ": another builder has held it for " + duration_text(waited_ms));
    }
    if (!said) log_info("data", "waiting for another builder", {{"lock", path}});
    said = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(kPauseMs));
  }
}

// Under the lock every temporary folder belongs to a builder that died.
Status sweep(const std::string& store) {
  SWAX_ASSIGN(const std::vector<std::string> names, list_dir(store));
  for (const std::string& name : names) {
    if (name.starts_with(kBuildingPrefix)) SWAX_TRY(remove_tree(join_path(store, name)));
  }
  return ok();
}

Status import_all(const BuildOptions& options, SplitWriter& writer) {
  int64_t done = 0;  // bytes of the inputs before the current one
  for (const std::string& input : options.inputs) {
    int64_t last = 0;
    const ImportOptions import{.documents = options.documents,
                               .jsonl_field = options.jsonl_field,
                               .lossy = options.lossy,
                               .progress = [&](int64_t bytes) {
                                 last = bytes;
                                 if (options.progress) options.progress(done + bytes);
                               }};
    SWAX_TRY(import_documents(input, import, writer));
    done += last;
  }
  SWAX_TRY(writer.finish());
  if (writer.train().shards().empty()) {
    return not_found("no document in " + printable(options.inputs[0], 512) +
                     (options.inputs.size() > 1 ? " and the other inputs" : ""));
  }
  return ok();
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

pb::DatasetManifest make_manifest(const BuildOptions& options, const SplitWriter& writer) {
  pb::DatasetManifest m;
  m.set_name(options.name);
  m.set_tokenizer("bytes");
  m.set_vocab_size(kByteVocab);
  m.set_eod_token(kEodToken);
  m.set_token_bytes(2);
  m.set_document_rule(options.documents);
  m.set_validation_fraction(options.validation_fraction);
  m.set_license(options.license);
  for (const ShardSetWriter* set : {&writer.train(), &writer.validation()}) {
    for (const pb::ShardInfo& shard : set->shards()) *m.add_shards() = shard;
    *m.add_splits() = set->split();
  }
  // One parent, the documents themselves: neither the container nor the cut into files may enter
  // the digest.
  pb::ParentFile* parent = m.add_parents();
  std::string paths;
  for (const std::string& input : options.inputs) paths += (paths.empty() ? "" : "\n") + input;
  parent->set_path(paths);
  parent->set_bytes(static_cast<uint64_t>(writer.text_bytes()));
  parent->set_xxh3_128(writer.documents_hash().hex());
  SystemClock clock;
  m.set_created_ms(clock.wall_ms());
  m.set_host(host_name());
  return m;
}

Result<pb::DatasetManifest> build_in(const BuildOptions& options, const std::string& store,
                                     const std::string& temporary) {
  SWAX_TRY(make_dirs(temporary));
  SplitWriter writer({.folder = temporary,
                      .name = options.name,
                      .validation_fraction = options.validation_fraction,
                      .shard_bytes_max = options.shard_bytes_max});
  SWAX_TRY(import_all(options, writer));
  SWAX_FAILPOINT("dataset.shards_written");
  pb::DatasetManifest manifest = make_manifest(options, writer);
  SWAX_TRY(write_dataset_manifest(temporary, &manifest));
  SWAX_FAILPOINT("dataset.manifest_written");

  const std::string final_folder = join_path(store, manifest.digest());
  if (path_exists(final_folder)) {
    SWAX_TRY(remove_tree(temporary));
    Result<pb::DatasetManifest> existing = read_dataset_manifest(final_folder);
    if (existing.ok()) return existing;
    return existing.status().with_context("remove " + final_folder + " to build it again");
  }
  if (std::rename(temporary.c_str(), final_folder.c_str()) != 0) {
    return internal_error("rename to " + final_folder + ": " +
                          std::generic_category().message(errno));
  }
  SWAX_FAILPOINT("dataset.renamed");
  SWAX_TRY(sync_dir(store));
  log_info(
      "data", "data set built",
      {{"digest", manifest.digest()},
       {"documents", writer.train().split().documents() + writer.validation().split().documents()},
       {"held_out", writer.validation().split().documents()},
       {"empty_left_out", writer.empty_documents()},
       {"text_bytes", writer.text_bytes()}});
  return manifest;
}

}  // namespace

Result<pb::DatasetManifest> build_dataset(const BuildOptions& options,
                                          const std::string& store_data_folder) {
  SWAX_TRY(check_options(options));
  SWAX_TRY(make_dirs(store_data_folder));
  SWAX_ASSIGN(const Fd lock, wait_for_lock(join_path(store_data_folder, kLockName)));
  SWAX_TRY(sweep(store_data_folder));
  const std::string temporary = join_path(
      store_data_folder, std::string(kBuildingPrefix) + to_text(static_cast<int64_t>(getpid())));
  Result<pb::DatasetManifest> built = build_in(options, store_data_folder, temporary);
  if (!built.ok()) {
    if (const Status removed = remove_tree(temporary); !removed.ok()) {
      log_warn("data", "temporary folder stays until the next build",
               {{"error", removed.message()}});
    }
  }
  return built;
}

Status find_text(const std::string& text) {
  SWAX_ASSIGN(const BuildOptions options, build_options_for_text("", text));
  const std::string& input = options.inputs.front();
  if (input == kKjvInput) return find_bible();
  const std::string shown = printable(input, 200);
  if (!path_exists(input)) return not_found(shown + " does not exist");
  if (is_directory(input)) return invalid_argument(shown + " is a folder, not a text");
  if (faccessat(AT_FDCWD, input.c_str(), R_OK, AT_EACCESS) == 0) return ok();
  return failed_precondition(shown + ": " + std::generic_category().message(errno));
}

Result<BuildOptions> build_options_for_text(const std::string& name, const std::string& text) {
  constexpr std::string_view kFile = "file:";
  BuildOptions options;
  options.name = name;
  if (text == kKjvInput) {
    options.inputs = {text};
    options.license = "public domain (in the United Kingdom: letters patent)";
  } else if (text.starts_with(kFile) && text.size() > kFile.size()) {
    options.inputs = {text.substr(kFile.size())};
  } else {
    return invalid_argument("text=" + printable(text) + ": must be debian:kjv or file:PATH");
  }
  return options;
}

}  // namespace swax
