#include "jobs/state_digest.h"

namespace swax {

void StateDigest::add(std::string_view name, std::span<const int64_t> shape, uint64_t sum0,
                      uint64_t sum1) {
  hasher_.update(name);
  hasher_.update("\0f32\0", 5);
  for (const int64_t dim : shape) hasher_.update(&dim, sizeof dim);
  hasher_.update(&sum0, sizeof sum0);
  hasher_.update(&sum1, sizeof sum1);
}

Hash128 StateDigest::finish(int64_t step) {
  hasher_.update(&step, sizeof step);
  return hasher_.digest();
}

}  // namespace swax
