// One call of an op as a value: kept, compared and made later. Only the ops of a layer and its
// ends, whose arguments are tensors and numbers: nothing in host memory is read when the call is
// made. Threads: a plain value.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/backend.h"

namespace swax {

struct CopyArgs {
  Tensor to;
  Tensor from;
};

using Call =
    std::variant<CopyArgs, FillArgs, AddArgs, CastArgs, GemmArgs, EmbeddingArgs,
                 EmbeddingBackwardArgs, RmsNormArgs, RmsNormApplyArgs, RmsNormBackwardArgs,
                 HeadNormArgs, HeadNormBackwardArgs, RopeArgs, SwaArgs, SwaBackwardArgs,
                 MlstmGatesArgs, MlstmGatesBackwardArgs, RmsNormGatesArgs, RmsNormGatesBackwardArgs,
                 MlstmArgs, MlstmBackwardArgs, SwigluArgs, SwigluBackwardArgs, CrossEntropyArgs>;

Status make_call(Backend& backend, Stream& stream, const Call& call);

// Appends the op and every argument (addresses, types, shapes, strides, numbers by their bits):
// equal words, equal calls.
void append_words(const Call& call, std::vector<uint64_t>& words);

}  // namespace swax
