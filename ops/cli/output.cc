#include "ops/cli/output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "proto/base/text.h"

namespace swax {

struct JsonWriter {
  using Out = nlohmann::ordered_json;
  static Out convert(const Json& json) {
    switch (json.kind_) {
      case Json::Kind::kNull:
        return nullptr;
      case Json::Kind::kBool:
        return json.unsigned_ != 0;
      case Json::Kind::kSigned:
        return json.signed_;
      case Json::Kind::kUnsigned:
        return json.unsigned_;
      case Json::Kind::kDouble:
        return std::isfinite(json.double_) ? Out(json.double_) : Out(nullptr);
      case Json::Kind::kString:
        return json.string_;
      case Json::Kind::kArray: {
        Out out = Out::array();
        for (const Json& item : json.items_) out.push_back(convert(item));
        return out;
      }
      case Json::Kind::kObject: {
        Out out = Out::object();
        for (size_t i = 0; i < json.keys_.size(); ++i) out[json.keys_[i]] = convert(json.items_[i]);
        return out;
      }
    }
    return nullptr;
  }
};

Json Json::object() {
  Json json;
  json.kind_ = Kind::kObject;
  return json;
}

Json Json::array() {
  Json json;
  json.kind_ = Kind::kArray;
  return json;
}

Json& Json::set(std::string key, Json value) {
  SWAX_CHECK(kind_ == Kind::kObject);
  keys_.push_back(std::move(key));
  items_.push_back(std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  SWAX_CHECK(kind_ == Kind::kArray);
  items_.push_back(std::move(value));
  return *this;
}

std::string Json::text(bool indented) const {
  // Bytes that are not UTF-8 (a path, a message) are replaced, so that dump() never fails.
  return JsonWriter::convert(*this).dump(indented ? 2 : -1, ' ', false,
                                         nlohmann::ordered_json::error_handler_t::replace);
}

void TextTable::add(std::vector<std::string> row) {
  SWAX_CHECK(row.size() == columns_.size());
  rows_.push_back(std::move(row));
}

std::string TextTable::text(size_t indent) const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.name.size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  const auto line = [&](const auto& cell) {
    std::string text(indent, ' ');
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string pad(widths[c] - cell(c).size(), ' ');
      text += c == 0 ? "" : "  ";
      text += columns_[c].align == Align::kLeft ? cell(c) + pad : pad + cell(c);
    }
    text.resize(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](size_t c) -> const std::string& { return columns_[c].name; });
  for (const auto& row : rows_) line([&](size_t c) -> const std::string& { return row[c]; });
  return out;
}

// A failed write is found by finish_output; until then there is nothing better to do than go on.
void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return;
}

void print_line(std::string_view line) {
  print(line);
  print("\n");
}

void print_json(const Json& json) { print_line(json.text()); }

void print_message(std::string_view message) { print_diagnostic("swax: " + std::string(message)); }

void print_diagnostic(std::string_view line) {
  std::fflush(stdout);  // what was printed before stands before it, also in one file
  const std::string text = std::string(line) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), stderr) != text.size()) return;
}

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

std::string coloured(std::string_view text, Colour colour) {
  const char* term = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");
  const bool off = (no_colour != nullptr && *no_colour != '\0') ||
                   (term != nullptr && std::string_view(term) == "dumb");
  if (off || !is_terminal(STDOUT_FILENO)) return std::string(text);
  const char* code = colour == Colour::kGood ? "32" : colour == Colour::kBad ? "31" : "2";
  return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
}

std::string one_line(std::string_view text, size_t bytes_max) { return printable(text, bytes_max); }

Progress::Progress(std::string what)
    : what_(std::move(what)), terminal_(is_terminal(STDERR_FILENO)) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Progress::bytes(int64_t done, int64_t total) {
  constexpr int64_t kRedrawMs = 200;
  if (!terminal_ || clock_.monotonic_ms() - shown_ms_ < kRedrawMs) return;
  shown_ms_ = clock_.monotonic_ms();
  drawn_ = true;
  const std::string of = total > 0 ? " of " + bytes_text(total) : "";
  std::fputs(("\r\x1b[K" + what_ + ": " + bytes_text(done) + of).c_str(), stderr);
  std::fflush(stderr);
}

int exit_code_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kExitOk;
    case Code::kInvalidArgument:
      return kExitUsage;
    case Code::kNotFound:
      return kExitNotFound;
    case Code::kAlreadyExists:
    case Code::kFailedPrecondition:
    case Code::kUnavailable:
    case Code::kDataLoss:
    case Code::kFenced:
      return kExitConflict;
    default:
      return kExitInternal;
  }
}

int fail(const Status& status) {
  print_message(status.message());
  return exit_code_of(status);
}

int finish_output(int exit_code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (flushed) return exit_code;
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  const bool reader_gone = ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
  if (reader_gone) return exit_code;
  print_message("stdout: the result could not be written");
  return exit_code == kExitOk ? kExitInternal : exit_code;
}

}  // namespace swax
