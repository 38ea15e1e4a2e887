#include "worker/data/import_jsonl.h"

#include <simdjson.h>

#include <string_view>
#include <vector>

#include "proto/base/text.h"
#include "worker/data/import.h"

namespace swax {
namespace {

constexpr size_t kPieceBytes = 256 * 1024;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kJsonBlank = " \t\r\n";

class LineParser {
 public:
  LineParser(const JsonlImport& import, DocumentSink& sink)
      : import_(import), sink_(sink), parser_(kJsonlLineBytesMax) {}

  Status feed(std::string_view text) {
    for (;;) {
      const size_t end = text.find('\n');
      const std::string_view piece = text.substr(0, end);
      if (line_.size() + piece.size() > static_cast<size_t>(kJsonlLineBytesMax)) {
        return wrong("more than " + bytes_text(kJsonlLineBytesMax) +
                     " in one line: cut the document");
      }
      line_ += piece;
      if (end == std::string_view::npos) return ok();
      SWAX_TRY(finish_line());
      text.remove_prefix(end + 1);
    }
  }

  Status finish_line() {
    std::string_view line = line_;
    if (number_ == 1 && line.starts_with(kByteOrderMark)) {
      line.remove_prefix(kByteOrderMark.size());
    }
    if (line.find_first_not_of(kJsonBlank) != std::string_view::npos) SWAX_TRY(parse(line));
    line_.clear();
    ++number_;
    return ok();
  }

 private:
  Status parse(std::string_view line) {
    // simdjson reads up to SIMDJSON_PADDING bytes behind the text; growing first keeps `line`
    // valid.
    const auto offset = static_cast<size_t>(line.data() - line_.data());
    line_.reserve(line_.size() + simdjson::SIMDJSON_PADDING);
    simdjson::dom::object object;
    const simdjson::error_code error =
        parser_.parse(line_.data() + offset, line.size(), false).get(object);
    if (error != simdjson::SUCCESS) {
      return wrong(error == simdjson::INCORRECT_TYPE ? "must be a JSON object"
                                                     : simdjson::error_message(error));
    }
    bool found = false;
    std::string_view text;
    for (const simdjson::dom::key_value_pair member : object) {
      if (member.key != import_.field) continue;
      if (found) return wrong(field_name() + " stands twice");
      found = true;
      if (member.value.get(text) != simdjson::SUCCESS) {
        return wrong(field_name() + " must be a string");
      }
    }
    if (!found) return wrong(field_name() + " is missing");
    SWAX_TRY(sink_.text(text));
    return sink_.end_document();
  }

  std::string field_name() const { return "field \"" + printable(import_.field) + "\""; }
  Status wrong(std::string_view what) const {
    return invalid_argument(printable(import_.path, 512) + ":" + to_text(number_) + ": " +
                            std::string(what));
  }

  const JsonlImport& import_;
  DocumentSink& sink_;
  simdjson::dom::parser parser_;
  std::string line_;
  int64_t number_ = 1;  // of the current line
};

}  // namespace

Status import_jsonl(const JsonlImport& import, ByteStream& stream, DocumentSink& sink,
                    const std::function<void()>& after_piece) {
  LineParser lines(import, sink);
  std::vector<char> buffer(kPieceBytes);
  for (;;) {
    SWAX_ASSIGN(const size_t bytes, stream.read(buffer));
    if (bytes == 0) break;
    SWAX_TRY(lines.feed({buffer.data(), bytes}));
    after_piece();
  }
  return lines.finish_line();
}

}  // namespace swax
