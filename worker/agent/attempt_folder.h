// A temporary folder with room for sockets, which need short paths: the agent's for its ranks.
// Threads: one.
#pragma once

#include <string>

#include "proto/base/status.h"

namespace swax {

// Where the sockets lie: below `folder`, or, when that path is so long that a socket's name might
// not fit (sun_path has 107 bytes), a folder of ours below /tmp whose name follows from `folder`.
std::string session_folder(const std::string& folder);

// Both folders, fresh. kFailedPrecondition: the one below /tmp belongs to somebody else.
Status make_attempt_folder(const std::string& folder);
Status remove_attempt_folder(const std::string& folder);

}  // namespace swax
