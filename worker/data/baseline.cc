#include "worker/data/baseline.h"

#include <algorithm>
#include <memory>

#include "proto/base/math.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/build.h"
#include "worker/data/ngram_model.h"

namespace swax {
namespace {

constexpr uint64_t kPieceTokens = 64 * 1024;
constexpr double kLn2 = 0.693147180559945309417232121458;

// Calls use(position, symbol, starts_document) for tokens [0, end) of the split in order.
template <typename Use>
Status for_tokens(DatasetReader& reader, uint64_t end, Use use) {
  std::vector<int32_t> tokens(kPieceTokens);
  std::vector<uint8_t> starts(kPieceTokens);
  for (uint64_t begin = 0; begin < end; begin += kPieceTokens) {
    const auto count = static_cast<size_t>(std::min(kPieceTokens, end - begin));
    SWAX_TRY(reader.read(begin, std::span(tokens).first(count)));
    SWAX_TRY(reader.document_starts(begin, std::span(starts).first(count)));
    for (size_t i = 0; i < count; ++i) {
      SWAX_TRY(use(begin + i, static_cast<uint32_t>(tokens[i]), starts[i] != 0));
    }
  }
  return ok();
}

Status count_training(const std::string& folder, NgramModel* model) {
  SWAX_ASSIGN(const std::unique_ptr<DatasetReader> train, DatasetReader::open(folder, "train", ""));
  if (train->manifest().tokenizer() != "bytes") {
    return invalid_argument("data set " + folder + ": tokenizer " +
                            printable(train->manifest().tokenizer()) + ": must be bytes");
  }
  NgramContext context;
  return for_tokens(*train, train->tokens(), [&](uint64_t, uint32_t symbol, bool starts) {
    if (starts) context = {};
    return model->count(symbol, &context);
  });
}

}  // namespace

Result<std::vector<BaselineResult>> ngram_baseline(const std::string& dataset_folder,
                                                   const std::vector<int>& orders, int64_t seq_len,
                                                   bool doc_reset) {
  if (orders.empty()) return invalid_argument("orders: must name one of 1..8");
  for (const int order : orders) {
    if (order < 1 || order > kNgramOrderMax) {
      return invalid_argument("order=" + to_text(order) + ": must be 1..8");
    }
  }
  if (seq_len < 1) return invalid_argument("seq_len=" + to_text(seq_len) + ": must be from 1");
  const int order_max = *std::max_element(orders.begin(), orders.end());
  NgramModel model(order_max);
  SWAX_TRY(count_training(dataset_folder, &model));

  SWAX_ASSIGN(const std::unique_ptr<DatasetReader> held_out,
              DatasetReader::open(dataset_folder, "validation", ""));
  const uint64_t tokens = held_out->tokens();
  const auto length = static_cast<uint64_t>(seq_len);
  const uint64_t windows = tokens > length ? (tokens - 1) / length : 0;
  if (windows == 0) {
    return failed_precondition("validation split has " + to_text(tokens) +
                               " tokens: must be more than seq_len=" + to_text(seq_len));
  }
  // The windows touch: their targets are the tokens 1 .. windows * T, each once.
  std::vector<double> nats(static_cast<size_t>(order_max), 0.0);
  std::vector<double> p(static_cast<size_t>(order_max), 0.0);
  BaselineResult counts;
  NgramContext context;
  const auto score = [&](uint64_t position, uint32_t symbol, bool starts) {
    if (starts) context = {};
    const bool target = position > 0 && !(starts && doc_reset);
    if (target) {
      model.probabilities(symbol, context, p);
      for (size_t k = 0; k < p.size(); ++k) nats[k] -= math::log(p[k]);
      ++counts.targets;
      counts.text_bytes += symbol != kEodToken ? 1 : 0;
    }
    model.advance(symbol, &context);
    return ok();
  };
  SWAX_TRY(for_tokens(*held_out, windows * length + 1, score));

  std::vector<BaselineResult> results;
  for (const int order : orders) {
    BaselineResult result = counts;
    result.order = order;
    const double bits = nats[static_cast<size_t>(order - 1)] / kLn2;
    result.bits_per_byte =
        counts.text_bytes > 0 ? bits / static_cast<double>(counts.text_bytes) : 0.0;
    results.push_back(result);
  }
  return results;
}

}  // namespace swax
