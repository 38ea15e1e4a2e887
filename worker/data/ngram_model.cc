#include "worker/data/ngram_model.h"

#include <algorithm>

#include "proto/base/check.h"
#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kFirstSlots = 1 << 16;
constexpr int kSymbolBits = 9;

uint64_t key_of(uint32_t node, uint32_t symbol) {
  return (static_cast<uint64_t>(node) << kSymbolBits | symbol) + 1;
}

}  // namespace

NgramModel::NgramModel(int order_max) : order_max_(order_max), nodes_(1), slots_(kFirstSlots) {
  SWAX_CHECK(order_max >= 1 && order_max <= kNgramOrderMax);
}

size_t NgramModel::find(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t at = mix_bits(key) & mask;
  while (slots_[at].key != 0 && slots_[at].key != key) at = (at + 1) & mask;
  return at;
}

uint32_t NgramModel::child(uint32_t node, uint32_t symbol) const {
  const Slot& slot = slots_[find(key_of(node, symbol))];
  return slot.key == 0 ? kNoNode : slot.child;
}

void NgramModel::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.key != 0) slots_[find(slot.key)] = slot;
  }
}

uint32_t NgramModel::child_or_new(uint32_t node, uint32_t symbol) {
  const uint64_t key = key_of(node, symbol);
  size_t at = find(key);
  if (slots_[at].key != 0) return slots_[at].child;
  if (nodes_.size() * 2 > slots_.size()) {
    grow();
    at = find(key);
  }
  const auto added = static_cast<uint32_t>(nodes_.size());
  slots_[at] = {key, added};
  nodes_.emplace_back();
  ++nodes_[node].followers;
  return added;
}

Status NgramModel::count(uint32_t symbol, NgramContext* context) {
  if (nodes_.size() + kNgramOrderMax > kNgramsMax) {
    return resource_exhausted("more than " + group_digits(static_cast<int64_t>(kNgramsMax)) +
                              " distinct n-grams: choose a lower order");
  }
  const NgramContext before = *context;
  for (int k = 0; k <= before.length; ++k) {
    const auto index = static_cast<size_t>(k);
    const uint32_t longer = child_or_new(before.nodes[index], symbol);
    ++nodes_[before.nodes[index]].followed;
    ++nodes_[longer].count;
    if (k + 1 < order_max_) context->nodes[index + 1] = longer;
  }
  context->length = std::min(before.length + 1, order_max_ - 1);
  return ok();
}

void NgramModel::probabilities(uint32_t symbol, const NgramContext& context,
                               std::span<double> by_order) const {
  SWAX_CHECK(by_order.size() == static_cast<size_t>(order_max_));
  double p = 1.0 / kSymbols;
  for (int k = 0; k < order_max_; ++k) {
    const uint32_t node = k <= context.length ? context.nodes[static_cast<size_t>(k)] : kNoNode;
    // A context that was never seen says nothing: c = T = 0 leaves the shorter one's answer.
    if (node != kNoNode && nodes_[node].followers > 0) {
      const Node& h = nodes_[node];
      const uint32_t hw = child(node, symbol);
      const double count = hw == kNoNode ? 0.0 : static_cast<double>(nodes_[hw].count);
      const double followers = h.followers;
      p = (count + followers * p) / (static_cast<double>(h.followed) + followers);
    }
    by_order[static_cast<size_t>(k)] = p;
  }
}

void NgramModel::advance(uint32_t symbol, NgramContext* context) const {
  const NgramContext before = *context;
  for (int k = 0; k <= before.length && k + 1 < order_max_; ++k) {
    const uint32_t node = before.nodes[static_cast<size_t>(k)];
    context->nodes[static_cast<size_t>(k) + 1] = node == kNoNode ? kNoNode : child(node, symbol);
  }
  context->length = std::min(before.length + 1, order_max_ - 1);
}

}  // namespace swax
