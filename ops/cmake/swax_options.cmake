# Compiler and flags. The arithmetic flags are part of the product: they decide bits.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
set(SWAX_SANITIZE "" CACHE STRING "empty, address or thread")
option(SWAX_WERROR "warnings are errors" ON)

# No contraction and no fast-math: the same source gives the same bits in every build type.
# x86-64-v3 and not native: one binary for login nodes, workers and CI.
# The checks (SWAX_CHECK) stay on everywhere; NDEBUG only switches off SWAX_DCHECK and library asserts.
set(SWAX_ARITH_FLAGS -ffp-contract=off -fno-fast-math -fno-math-errno -march=x86-64-v3 -mtune=generic)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${SWAX_ARITH_FLAGS}>")

# -Wrestrict of GCC 12 warns falsely on std::string concatenation at -O3 (GCC bug 105329).
set(SWAX_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Wno-restrict)
if(SWAX_WERROR)
  list(APPEND SWAX_WARNINGS -Werror)
endif()
if(SWAX_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SWAX_SANITIZE};-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=${SWAX_SANITIZE})
endif()
