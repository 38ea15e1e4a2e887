#include "worker/data/window_filler.h"

#include <algorithm>

namespace swax {

WindowFiller::WindowFiller(int64_t seq_len, bool doc_reset)
    : length_(static_cast<size_t>(seq_len)),
      doc_reset_(doc_reset),
      tokens_(length_ + 1),
      starts_(length_ + 1) {}

void WindowFiller::prepare(SlotBatch* batch) const {
  batch->tokens_T.resize(length_);
  batch->targets_T.resize(length_);
  batch->doc_start_T.resize(doc_reset_ ? length_ : 0);
  batch->reset_T.resize(doc_reset_ ? length_ : 0);
}

Status WindowFiller::fill(DatasetReader& reader, int64_t window, SlotBatch* batch) {
  const uint64_t begin = static_cast<uint64_t>(window) * length_;
  const auto eod = static_cast<int32_t>(reader.manifest().eod_token());
  SWAX_TRY(reader.read(begin, tokens_));
  SWAX_TRY(reader.document_starts(begin, starts_));
  std::copy(tokens_.begin(), tokens_.end() - 1, batch->tokens_T.begin());
  batch->targets = 0;
  batch->text_bytes = 0;
  for (size_t t = 0; t < length_; ++t) {
    const bool ignored = doc_reset_ && starts_[t + 1] != 0;
    const int32_t target = ignored ? -1 : tokens_[t + 1];
    batch->targets_T[t] = target;
    batch->targets += ignored ? 0 : 1;
    batch->text_bytes += !ignored && target != eod ? 1 : 0;
  }
  if (!doc_reset_) return ok();
  int32_t document = 0;
  for (size_t t = 0; t < length_; ++t) {
    if (starts_[t] != 0) document = static_cast<int32_t>(t);
    batch->doc_start_T[t] = document;
    batch->reset_T[t] = starts_[t];
  }
  return ok();
}

}  // namespace swax
