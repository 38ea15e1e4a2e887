// The numbers of one optimizer step, in device memory. Inputs are written once per step by the host
// (one copy); outputs are written by kernels, so that norm -> clip -> AdamW needs no host read; the
// host reads the whole struct back once at the end of the step.
#pragma once

#include <cstdint>

namespace swax {

struct StepScalars {
  // in
  float lr = 0.0F;
  float weight_decay = 0.0F;
  float inv_targets = 0.0F;  // 1 / N_tok of the whole global batch
  float bias1 = 1.0F;        // 1 - beta1^(step + 1)
  float bias2 = 1.0F;        // 1 - beta2^(step + 1)
  float max_norm = 0.0F;
  int32_t skip = 0;  // 1: AdamW leaves master, m and v untouched
  int32_t reserved = 0;
  // out
  double grad_norm = 0.0;  // global L2 norm before the clip
  float clip = 1.0F;       // min(1, max_norm / (grad_norm + 1e-6))
  int32_t nonfinite =
      0;  // 1: grad_norm is NaN or infinite (AdamW then leaves everything untouched)
};

}  // namespace swax
