// swax-train, the program of a rank, which lies beside this program and must be of the same build.
// Threads: call before other threads exist: it runs `swax-train version`.
#pragma once

#include <string>

#include "proto/base/status.h"

namespace swax {

// Its path. kFailedPrecondition: it is missing, does not run or is of another build.
Result<std::string> train_program();

}  // namespace swax
