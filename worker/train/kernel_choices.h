// The forms of the products of a run (Backend::choose), one set for all its ranks and attempts.
// Rank 0 takes the ones that stand in a file of the run's store, chooses for products that have
// none there, and writes the file before anything is computed with them; every rank adopts the same
// text. Threads: stateless.
#pragma once

#include <span>
#include <string>

#include "kernels/backend.h"
#include "worker/comm/collectives.h"

namespace swax {

struct KernelChoices {
  std::string lines;    // of the products, a line a shape; empty: this backend has none
  bool chosen = false;  // some of them now, by time
};
// Collective. `file` empty: kept nowhere. Every rank gets the same answer. kFailedPrecondition when
// a stored form cannot be replayed here; names the file.
Result<KernelChoices> settle_kernel_choices(Backend& backend, Stream& stream, Collectives& group,
                                            std::span<const GemmArgs> products,
                                            const std::string& file);

}  // namespace swax
