// The King James Version out of Debian's program `bible` (package bible-kjv): 1,189 chapters, each
// a document of one verse a line without verse numbers. The same bytes on every machine: the
// program runs without a shell, with the system's text file and an environment of its own. Errors:
// kNotFound with the apt-get line when the program is missing, kDataLoss when its output is not the
// whole text. Threads: any; starts one child process and reaps it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "proto/base/status.h"
#include "worker/data/document_sink.h"

namespace swax {

constexpr int kKjvChapters = 1189;

// Cuts the program's output, lines like "Ge1:1 In the beginning ...", fed in pieces of any size.
class KjvCutter {
 public:
  explicit KjvCutter(DocumentSink& sink) : sink_(sink) {}
  Status feed(std::string_view text);
  Status finish();  // checks that all chapters came

 private:
  Status verse(std::string_view line);

  DocumentSink& sink_;
  std::string line_;
  std::string chapter_;  // "Ge1"
  int64_t lines_ = 0;
  int chapters_ = 0;
};

// kNotFound with the apt-get line when the program is missing.
Status find_bible();

// Runs `bible`. `after_piece` gets the bytes read so far.
Status import_kjv(DocumentSink& sink, const std::function<void(int64_t bytes)>& after_piece);

}  // namespace swax
