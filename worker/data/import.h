// Reads documents out of files. Memory is bounded whatever the input: plain text of any line length
// is streamed, a JSONL line has at most kJsonlLineBytesMax. The same documents come out of plain,
// .gz (all members) and .zst (all frames) files; the container is told by its first bytes, the text
// form by the name below .gz or .zst: .jsonl and .ndjson are JSONL, everything else is plain text.
// Rules of cutting and cleaning: worker/data/README.md.
// Errors: kNotFound, kInvalidArgument (bad UTF-8: file and byte offset of the decoded text; bad
// JSONL: file:line), kDataLoss (a truncated or damaged container), and what the sink returns.
// Threads: pure functions on files; one call per sink at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "proto/base/status.h"
#include "worker/data/document_sink.h"

namespace swax {

constexpr int64_t kJsonlLineBytesMax = 64LL * 1024 * 1024;
constexpr std::string_view kKjvInput = "debian:kjv";

struct ImportOptions {
  std::string documents = "auto";  // "auto", "file" or "line", as in BuildOptions
  std::string jsonl_field = "text";
  bool lossy = false;  // plain text only: bytes that are not UTF-8 are kept as they are
  std::function<void(int64_t bytes)> progress =
      {};  // bytes of this input read so far, as stored; may be empty
};

// `input` is a path or "debian:kjv".
Status import_documents(const std::string& input, const ImportOptions& options, DocumentSink& sink);

}  // namespace swax
