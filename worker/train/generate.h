// Text from a checkpoint: loads the model part of the newest good checkpoint (or a named step),
// feeds the prompt and samples tokens with constant memory. Sampling is counter-based: (seed,
// position) decides, so the same call gives the same text. Threads: one.
#pragma once

#include <functional>
#include <string>

#include "proto/job.pb.h"
#include "worker/model/model.h"

namespace swax {

struct GenerateOptions {
  pb::JobSpec spec;
  std::string ckpt_root;
  int64_t step = -1;   // -1: the newest good one
  std::string prompt;  // bytes
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: the most likely token
  int top_k = 40;            // 0: all
  uint64_t seed = 0;
  int64_t window = 0;  // 0: window.long of the spec
};

// Calls emit with each piece of text as it comes (EOD ends a document and becomes a blank line).
// Returns the step of the checkpoint.
Result<int64_t> generate(Backend& backend, const GenerateOptions& options,
                         const std::function<void(std::string_view)>& emit);

// Weights of one checkpoint, flat in table order without padding, on the backend. kNotFound: no
// committed checkpoint (of that step); kDataLoss: there is one, but none is whole. What the disk or
// the backend says otherwise passes through.
Result<Buffer> load_model_weights(Backend& backend, const ModelShape& shape,
                                  const std::string& ckpt_root, int64_t step, int64_t* loaded_step);

// Pure: the token that (logits, options, position) give.
int32_t sample_token(std::span<const float> logits, double temperature, int top_k, uint64_t seed,
                     int64_t position, std::vector<std::pair<float, int32_t>>& scratch);

}  // namespace swax
