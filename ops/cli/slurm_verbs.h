// `swax slurm`: the verbs of batch scripts and clusters. Threads: main thread.
#pragma once

#include <string>
#include <vector>

#include "ops/cli/args.h"

namespace swax {

// How the processes of a Slurm job end: what the batch script decides by.
constexpr int kSlurmRetry = 75;    // nothing is wrong with the job: elsewhere or later
constexpr int kSlurmConfig = 78;   // spec, data or set-up: the same again
constexpr int kSlurmDecided = 93;  // the training job has failed or was cancelled
constexpr int kSlurmSaved = 99;    // saved and left on request

// What follows the node's name in the name of its worker: "-17", after a requeue "-17-1". A node
// that comes back is another worker, so that what its earlier self was told to run is nobody's any
// more.
std::string slurm_worker_mark();

int verb_slurm_render(const Args& args);
int verb_slurm_submit(const Args& args);
int verb_slurm_worker(const Args& args);
int verb_slurm_serve(const Args& args);

std::vector<VerbSpec> slurm_verbs();

}  // namespace swax
