// Counts the calls of operator new of the calling thread. Linked into tests that ask for it only.
#pragma once

#include <cstdint>

namespace swax::test {

bool counts_allocations();  // false in sanitizer builds, which have an operator new of their own
int64_t thread_allocations();

}  // namespace swax::test
