// Common types of the float64 reference functions and the list of planted bugs.
// Everything here is plain values and pure functions: no state, any thread. Wrong sizes abort
// (SWAX_CHECK). Legend of suffixes: T tokens, D model, H heads, K key dim, V value dim (or
// vocabulary for logits), O out, I in, F feed-forward. All arrays are C order, token major:
// q_THK[(t * H + h) * K + k]. One call is one sequence (one slot).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/base/check.h"

namespace swax::reference {

using Vec = std::vector<double>;
using View = std::span<const double>;
using IntView = std::span<const int32_t>;

// A planted bug. Tests pass one to prove that a check can fail; everything else leaves kNone.
enum class Canary {
  kNone,
  kNoNormaliser,     // mLSTM backward: gradient of the denominator left out (gamma = 0)
  kNoCarry,          // mLSTM backward: <C, dC> left out of the forget-gate gradient of a chunk
  kNoResetMask,      // mLSTM and attention: document borders ignored
  kNoCapDerivative,  // soft cap of gates and logits: derivative taken as 1
  kNoNormMean,       // RMSNorm backward: mean term left out
  kWindowOffByOne,   // attention: window + 1 keys visible
  kLastTileDropped,  // matmul: last tile (kReductionTile) of the reduction left out
};
constexpr int64_t kReductionTile = 8;

inline int64_t length(View x) { return static_cast<int64_t>(x.size()); }
inline Vec zeros(int64_t count) { return Vec(static_cast<size_t>(count), 0.0); }
inline double& at(Vec& x, int64_t i) { return x[static_cast<size_t>(i)]; }
inline double at(View x, int64_t i) { return x[static_cast<size_t>(i)]; }

// Document borders. reset_T[t] is 1 at the first token of a document, else 0; an empty view means
// "no borders".
inline bool starts_document(IntView reset_T, int64_t t) {
  return !reset_T.empty() && reset_T[static_cast<size_t>(t)] != 0;
}
// Index of the first token of t's document (0 when it began before this sequence), the form the
// attention kernels take.
inline std::vector<int32_t> first_tokens(IntView reset_T) {
  std::vector<int32_t> first(reset_T.size(), 0);
  for (size_t t = 1; t < reset_T.size(); ++t) {
    first[t] = reset_T[t] != 0 ? static_cast<int32_t>(t) : first[t - 1];
  }
  return first;
}

}  // namespace swax::reference
