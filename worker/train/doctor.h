// `swax-train doctor`: what only this program can say of a machine, for `swax doctor`.
#pragma once

#include <string>

namespace swax {

// A line a fact: name, "ok" or "bad", text, with tabs between. Threads: main thread, before MPI is
// initialised.
std::string doctor_lines();

}  // namespace swax
