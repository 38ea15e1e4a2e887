// Builds a data set: documents -> bytes + EOD -> token shards + manifest. Deterministic: the same
// documents give the same digest for every container (txt, JSONL, .gz, .zst) and machine. An
// existing data set of the same digest is left as it is; two builders at once are safe (lock +
// rename). Formats and rules: storage/FORMAT.md, worker/data/README.md. Failpoints:
// dataset.shards_written, dataset.manifest_written, dataset.renamed. Threads: build_dataset may be
// called from any thread; it starts a child process for debian:kjv.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "proto/shard.pb.h"

namespace swax {

constexpr uint32_t kEodToken = 256;
constexpr uint32_t kByteVocab = 257;

struct BuildOptions {
  std::string name;
  std::vector<std::string> inputs;  // files (.txt, .jsonl, each also .gz or .zst), or "debian:kjv"
  std::string documents = "auto";   // "auto": jsonl line / blank-line block / chapter for
                                    // debian:kjv; "file": a file is one document; "line"
  std::string jsonl_field = "text";
  double validation_fraction = 0.05;  // [0, 1)
  std::string license;
  bool lossy = false;  // keep bytes of plain text that are not UTF-8
  int64_t shard_bytes_max = 256LL * 1024 * 1024;
  std::function<void(int64_t bytes)> progress =
      {};  // bytes of all inputs read so far, as stored; may be empty
};
// Builds into store_data_folder/<digest>/ and returns that folder's manifest (manifest.digest names
// the folder). kInvalidArgument: options, bad input. kNotFound: no such file, program or no
// document in the inputs. kDataLoss: damaged input. kResourceExhausted: disk full; nothing is left
// behind. kUnavailable: another builder held the lock for hours.
Result<pb::DatasetManifest> build_dataset(const BuildOptions& options,
                                          const std::string& store_data_folder);

// Whether what a spec source's text names is there, without reading it. kNotFound: no such file or
// program; kInvalidArgument: a folder, or no text at all; kFailedPrecondition: it may not be read.
Status find_text(const std::string& text);

// The options of a spec source's text = "debian:kjv" | "file:PATH".
Result<BuildOptions> build_options_for_text(const std::string& name, const std::string& text);

}  // namespace swax
