// What identifies this build: version and a hash of the sources and flags it was made from
// (ops/cmake/build_id.cmake, at every build). `swax` and `swax-train` refuse to work together when
// theirs differ. Threads: constants.
#pragma once

namespace swax {

const char* build_version();  // "0.1.0"
const char* build_id();       // 16 hex digits
const char*
build_type();  // "Release", "RelWithDebInfo", with "+address" or "+thread" under a sanitizer

}  // namespace swax
