// What verbs print: results to stdout, messages to stderr. output.cc is the only file of the
// command line that sees the JSON library. Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace swax {

constexpr int kExitOk = 0, kExitInternal = 1, kExitUsage = 2, kExitNotFound = 3, kExitConflict = 4;

// A JSON value; objects keep the order of their keys. Doubles that are not finite become null.
class Json {
 public:
  Json() = default;  // null
  template <typename T>
  requires std::is_integral_v<T> Json(T value) {  // NOLINT: implicit on purpose
    if constexpr (std::is_same_v<T, bool>) {
      kind_ = Kind::kBool;
      unsigned_ = value ? 1 : 0;
    } else if constexpr (std::is_signed_v<T>) {
      kind_ = Kind::kSigned;
      signed_ = value;
    } else {
      kind_ = Kind::kUnsigned;
      unsigned_ = value;
    }
  }
  Json(double value) : kind_(Kind::kDouble), double_(value) {}                  // NOLINT
  Json(std::string value) : kind_(Kind::kString), string_(std::move(value)) {}  // NOLINT
  Json(std::string_view value) : Json(std::string(value)) {}                    // NOLINT
  Json(const char* value) : Json(std::string(value)) {}                         // NOLINT
  static Json object();
  static Json array();
  Json& set(std::string key, Json value);  // appends to an object
  Json& push(Json value);                  // appends to an array
  std::string text(bool indented = true) const;

 private:
  friend struct JsonWriter;
  enum class Kind { kNull, kBool, kSigned, kUnsigned, kDouble, kString, kArray, kObject };
  Kind kind_ = Kind::kNull;
  int64_t signed_ = 0;
  uint64_t unsigned_ = 0;
  double double_ = 0.0;
  std::string string_;
  std::vector<std::string> keys_;
  std::vector<Json> items_;
};

// Rows of text in columns with two spaces between; numbers are aligned to the right.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string name;
    Align align = Align::kRight;
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row);  // as many cells as columns
  std::string text(size_t indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

void print(std::string_view text);             // stdout, as it stands
void print_line(std::string_view line);        // stdout
void print_json(const Json& json);             // stdout
void print_message(std::string_view message);  // stderr, "swax: message"
void print_diagnostic(std::string_view line);  // stderr, "file:line: ..." as compilers say it

// Colours only where stdout is a terminal, NO_COLOR is not set and TERM is not dumb.
enum class Colour { kGood, kBad, kDim };
std::string coloured(std::string_view text, Colour colour);
bool is_terminal(int fd);
// Text for one line of a terminal, of a person's or a file's words: no control bytes.
std::string one_line(std::string_view text, size_t bytes_max = 300);

// One redrawn line on stderr while something takes long; nothing where stderr is no terminal.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void bytes(int64_t done, int64_t total);  // total 0: unknown

 private:
  std::string what_;
  bool terminal_ = false;
  bool drawn_ = false;
  SystemClock clock_;
  int64_t shown_ms_ = 0;
};

int exit_code_of(const Status& status);
int fail(const Status& status);  // says it on stderr; its exit code
// Flushes stdout. A reader that went away (EPIPE) is no error of ours and is not said; any other
// write error is, with exit code 1.
int finish_output(int exit_code);

}  // namespace swax
