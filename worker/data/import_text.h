// Plain text -> documents: UTF-8 check, byte order mark, CRLF, cutting. A state machine over pieces
// of any size, so a line or a document may have any length. Rules: worker/data/README.md. Threads:
// one owner.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "proto/base/status.h"
#include "worker/data/document_sink.h"
#include "worker/data/import_stream.h"

namespace swax {

enum class TextRule { kBlock, kLine, kFile };

// Cuts clean text (LF line ends) into documents. A line end that closes a document does not belong
// to it.
class TextCutter {
 public:
  TextCutter(TextRule rule, DocumentSink& sink) : rule_(rule), sink_(sink) {}
  Status feed(std::string_view text);
  Status finish();

 private:
  Status take(std::string_view line_piece);  // without LF, not empty
  Status line_end();

  TextRule rule_;
  DocumentSink& sink_;
  bool line_empty_ = true;      // nothing of the current line has come
  bool open_ = false;           // the current document has bytes
  bool line_end_held_ = false;  // a line end that belongs to the document only if more text follows
};

// Finds the first byte that is not part of well-formed UTF-8, over pieces.
class Utf8Checker {
 public:
  // Returns false at the first bad sequence; its offset is bad_offset().
  bool feed(std::string_view piece);
  bool finish();  // false when the text ends inside a sequence
  int64_t bad_offset() const { return bad_offset_; }

 private:
  bool check(std::string_view text);

  std::string tail_;  // at most 3 bytes of a sequence that is not complete yet
  int64_t checked_ = 0;
  int64_t bad_offset_ = -1;
};

struct TextImport {
  const std::string& path;  // for messages
  TextRule rule = TextRule::kBlock;
  bool lossy = false;
};
// `after_piece` is called after each piece that was read.
Status import_text(const TextImport& import, ByteStream& stream, DocumentSink& sink,
                   const std::function<void()>& after_piece);

}  // namespace swax
