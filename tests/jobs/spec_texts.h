// Texts of small specs for tests. No test framework, so that tests of the command line can use them
// too.
#pragma once

#include <string>

#include "proto/base/check.h"

namespace swax::test {

// Every required key and nothing else.
inline std::string minimal_text() {
  return R"(spec_version = 1
[job]
name = "a"
seed = 7
[model]
layers = 2
dim = 16
vocab_size = 260
heads = 2
head_dim = 8
mlstm_heads = 2
mlstm_qk_dim = 4
mlstm_v_dim = 8
ff_dim = 24
[window]
short = 4
long = 8
[training]
steps = 10
seq_len = 32
global_batch_size = 4
[optimizer]
lr = 0.001
[[data.sources]]
name = "s"
text = "debian:kjv"
)";
}

// The minimal text with one line replaced by another (or, with "", removed).
inline std::string minimal_with(const std::string& line, const std::string& by) {
  std::string text = minimal_text();
  const size_t at = text.find(line);
  SWAX_CHECK(at != std::string::npos);
  text.replace(at, line.size(), by);
  return text;
}

}  // namespace swax::test
