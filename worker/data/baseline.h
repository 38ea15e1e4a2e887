// Byte n-gram baseline: interpolated Witten-Bell, uniform at the bottom, counted on the training
// split and scored on exactly the targets that validation scores (same windows, same ignored
// targets, EOD a symbol of its own: 257 symbols). Source: Witten & Bell 1991; p(w|h) = (c(hw) +
// T(h) p(w|h')) / (c(h) + T(h)), T(h) distinct followers. Contexts do not cross documents; inside
// the document the whole left context is used, which favours the baseline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/status.h"

namespace swax {

struct BaselineResult {
  int order = 0;
  double bits_per_byte = 0.0;  // total bits over targets / text bytes among them
  int64_t targets = 0;
  int64_t text_bytes = 0;
};
// One result per order in `orders` (each 1..8).
Result<std::vector<BaselineResult>> ngram_baseline(const std::string& dataset_folder,
                                                   const std::vector<int>& orders, int64_t seq_len,
                                                   bool doc_reset);

}  // namespace swax
