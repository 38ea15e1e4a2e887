// Counts of all n-grams up to an order, and interpolated Witten-Bell probabilities from them
// (equation: baseline.h). Symbols are 0..256; contexts never reach over the start of a document.
// Memory: about 60 bytes for each distinct n-gram, at most kNgramsMax. Threads: one owner while
// counting, afterwards const.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/base/status.h"

namespace swax {

constexpr int kNgramOrderMax = 8;
constexpr size_t kNgramsMax = size_t{64} * 1024 * 1024;

// Where a text stands: the nodes of its last 0, 1, 2, ... symbols within the document. Starts at
// the beginning of a document.
struct NgramContext {
  std::array<uint32_t, kNgramOrderMax> nodes{};  // nodes[0] is the root; kNoNode: never seen
  int length = 0;                                // symbols, at most order - 1
};

class NgramModel {
 public:
  static constexpr uint32_t kNoNode = 0xffffffff;
  static constexpr uint32_t kSymbols = 257;

  explicit NgramModel(int order_max);  // 1..kNgramOrderMax
  // Counts `symbol` after `context` in every order and moves the context. kResourceExhausted: more
  // than kNgramsMax n-grams.
  Status count(uint32_t symbol, NgramContext* context);
  // by_order[k] = p(symbol | last k symbols), k < order_max; where the document has fewer symbols,
  // those that there are.
  void probabilities(uint32_t symbol, const NgramContext& context,
                     std::span<double> by_order) const;
  void advance(uint32_t symbol, NgramContext* context) const;

 private:
  struct Node {              // a string of symbols
    uint64_t count = 0;      // its occurrences
    uint64_t followed = 0;   // its occurrences with a symbol behind it in the same document
    uint32_t followers = 0;  // distinct ones
  };
  struct Slot {
    uint64_t key = 0;  // (node << 9 | symbol) + 1; 0: empty
    uint32_t child = 0;
  };
  // The slot of the key, or the empty one where it belongs.
  size_t find(uint64_t key) const;
  uint32_t child(uint32_t node, uint32_t symbol) const;
  uint32_t child_or_new(uint32_t node, uint32_t symbol);
  void grow();

  int order_max_;
  std::vector<Node> nodes_;
  std::vector<Slot> slots_;  // power of two, at most half full
};

}  // namespace swax
