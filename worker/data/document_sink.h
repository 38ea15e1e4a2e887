// Where an importer puts the documents that it reads: pieces of bytes, in order, each document
// closed by end_document(). A document need not fit in memory. Empty documents are closed too; the
// sink skips and counts them. Threads: one owner.
#pragma once

#include <string_view>

#include "proto/base/status.h"

namespace swax {

class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual Status text(std::string_view piece) = 0;  // the next bytes of the current document
  virtual Status end_document() = 0;
};

}  // namespace swax
