// JSON lines -> documents: each line is an object whose field `field` is the document, byte for
// byte. Memory: a line is parsed whole, so at most kJsonlLineBytesMax and about 13 times that for a
// line of nothing but numbers. Rules: worker/data/README.md. Threads: one owner.
#pragma once

#include <functional>
#include <string>

#include "proto/base/status.h"
#include "worker/data/document_sink.h"
#include "worker/data/import_stream.h"

namespace swax {

struct JsonlImport {
  const std::string& path;  // for messages
  const std::string& field;
};
// `after_piece` is called after each piece that was read.
Status import_jsonl(const JsonlImport& import, ByteStream& stream, DocumentSink& sink,
                    const std::function<void()>& after_piece);

}  // namespace swax
