#include "worker/data/import_text.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kPieceBytes = 256 * 1024;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Bytes at the end of `text` that begin a UTF-8 sequence without ending it: 0 to 3.
size_t open_sequence_bytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

size_t ascii_prefix_bytes(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
  }
  return i;
}

// CRLF -> LF in place. A CR at the end of a piece waits for the next one.
class LineEndFilter {
 public:
  // `buffer` holds `bytes` of new text behind one free byte; returns the clean text in it.
  std::string_view apply(std::vector<char>& buffer, size_t bytes) {
    char* begin = buffer.data() + 1;
    char* end = begin + bytes;
    if (held_) *--begin = '\r';
    held_ = end > begin && end[-1] == '\r';
    if (held_) --end;
    // A held CR is not looked at here, so every CR below has a successor in the buffer.
    char* to = std::find(begin, end, '\r');
    for (const char* from = to; from < end; ++from) {
      if (*from == '\r' && from + 1 < end && from[1] == '\n') continue;
      *to++ = *from;
    }
    return {begin, static_cast<size_t>(to - begin)};
  }
  bool held() const { return held_; }

 private:
  bool held_ = false;
};

}  // namespace

bool Utf8Checker::check(std::string_view text) {
  const size_t plain = ascii_prefix_bytes(text);
  size_t bad = 0;
  if (!valid_utf8(text.substr(plain), &bad)) {
    bad_offset_ = checked_ + static_cast<int64_t>(plain + bad);
    return false;
  }
  checked_ += static_cast<int64_t>(text.size());
  return true;
}

bool Utf8Checker::feed(std::string_view piece) {
  // Complete the sequence that the piece before left open, at most three bytes more.
  while (!tail_.empty() && !piece.empty()) {
    tail_ += piece[0];
    piece.remove_prefix(1);
    if (open_sequence_bytes(tail_) == tail_.size()) continue;
    if (!check(tail_)) return false;
    tail_.clear();
  }
  if (!tail_.empty()) return true;
  const size_t open = open_sequence_bytes(piece);
  if (!check(piece.substr(0, piece.size() - open))) return false;
  tail_ = piece.substr(piece.size() - open);
  return true;
}

bool Utf8Checker::finish() { return check(tail_); }

Status TextCutter::take(std::string_view line_piece) {
  if (line_end_held_) SWAX_TRY(sink_.text("\n"));
  line_end_held_ = false;
  line_empty_ = false;
  open_ = true;
  return sink_.text(line_piece);
}

Status TextCutter::line_end() {
  const bool was_empty = line_empty_;
  line_empty_ = true;
  if (rule_ == TextRule::kFile) {
    if (line_end_held_) SWAX_TRY(sink_.text("\n"));
    line_end_held_ = true;
    return ok();
  }
  if (rule_ == TextRule::kBlock && !was_empty) {
    line_end_held_ = true;
    return ok();
  }
  if (rule_ == TextRule::kBlock && !open_) return ok();  // blank lines in a row are one border
  open_ = false;
  line_end_held_ = false;
  return sink_.end_document();
}

Status TextCutter::feed(std::string_view text) {
  while (!text.empty()) {
    const size_t line = std::min(text.find('\n'), text.size());
    if (line > 0) SWAX_TRY(take(text.substr(0, line)));
    if (line == text.size()) break;
    SWAX_TRY(line_end());
    text.remove_prefix(line + 1);
  }
  return ok();
}

Status TextCutter::finish() {
  const bool closes = rule_ == TextRule::kFile || open_;
  open_ = false;
  return closes ? sink_.end_document() : ok();
}

Status import_text(const TextImport& import, ByteStream& stream, DocumentSink& sink,
                   const std::function<void()>& after_piece) {
  const auto bad_utf8 = [&](int64_t offset) {
    return invalid_argument(printable(import.path, 512) + ": byte " + to_text(offset) +
                            " of the text is not UTF-8 (keep such bytes with --lossy)");
  };
  std::vector<char> buffer(1 + kPieceBytes);
  Utf8Checker utf8;
  LineEndFilter line_ends;
  TextCutter cutter(import.rule, sink);
  for (bool first = true;; first = false) {
    const std::span<char> room = std::span(buffer).subspan(1);
    SWAX_ASSIGN(size_t bytes, stream.read(room));
    if (bytes == 0) break;
    const std::string_view piece(room.data(), bytes);
    if (!import.lossy && !utf8.feed(piece)) return bad_utf8(utf8.bad_offset());
    if (first && piece.starts_with(kByteOrderMark)) {
      std::copy(piece.begin() + 3, piece.end(), room.begin());
      bytes -= kByteOrderMark.size();
    }
    SWAX_TRY(cutter.feed(line_ends.apply(buffer, bytes)));
    after_piece();
  }
  if (!import.lossy && !utf8.finish()) return bad_utf8(utf8.bad_offset());
  if (line_ends.held()) SWAX_TRY(cutter.feed("\r"));
  return cutter.finish();
}

}  // namespace swax
