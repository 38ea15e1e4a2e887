#include "worker/data/import.h"

#include "proto/base/text.h"
#include "worker/data/import_jsonl.h"
#include "worker/data/import_kjv.h"
#include "worker/data/import_stream.h"
#include "worker/data/import_text.h"

namespace swax {
namespace {

bool is_jsonl(std::string_view path) {
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (path.ends_with(packed)) path.remove_suffix(packed.size());
  }
  return path.ends_with(".jsonl") || path.ends_with(".ndjson");
}

Result<TextRule> text_rule(std::string_view documents) {
  if (documents == "auto") return TextRule::kBlock;
  if (documents == "line") return TextRule::kLine;
  if (documents == "file") return TextRule::kFile;
  return invalid_argument("documents=" + printable(documents) + ": must be auto, file or line");
}

}  // namespace

Status import_documents(const std::string& input, const ImportOptions& options,
                        DocumentSink& sink) {
  SWAX_ASSIGN(const TextRule rule, text_rule(options.documents));
  const auto progress = [&](int64_t bytes) {
    if (options.progress) options.progress(bytes);
  };
  if (input == kKjvInput) {
    if (rule != TextRule::kBlock) {
      return invalid_argument("documents=" + options.documents + ": debian:kjv has chapters, auto");
    }
    return import_kjv(sink, progress);
  }
  if (input.starts_with("debian:")) {
    return invalid_argument(printable(input) + ": unknown text: must be debian:kjv");
  }
  SWAX_ASSIGN(const std::unique_ptr<ByteStream> stream, ByteStream::open(input));
  const auto after_piece = [&] { progress(stream->stored_bytes_read()); };
  if (!is_jsonl(input)) {
    const TextImport import{.path = input, .rule = rule, .lossy = options.lossy};
    return import_text(import, *stream, sink, after_piece);
  }
  if (rule == TextRule::kFile) {
    return invalid_argument("documents=file: a line of " + printable(input, 512) +
                            " is a document, auto or line");
  }
  const JsonlImport import{.path = input, .field = options.jsonl_field};
  return import_jsonl(import, *stream, sink, after_piece);
}

}  // namespace swax
