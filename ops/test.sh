#!/bin/bash
# Sets the machine up, builds swax and runs its tests: ops/test.sh [dev|asan|tsan|full]
#   dev   (default) an -O2 build, every test in its short form
#   asan  the targets labelled `sanitize` under AddressSanitizer (with leak check)
#   tsan  the same under ThreadSanitizer
#   full  the dev build, every test in its long form (SWAX_TEST_FULL=1)
# Words after the mode go to ctest: ops/test.sh dev -R kernels
# Exits with 0 only when something ran and all of it passed.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS

mode=dev
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
  mode=$1
  shift
fi
case $mode in
  dev | full) preset=dev target=all select=() ;;
  asan | tsan) preset=$mode target=sanitize_tests select=(-L '^sanitize$') ;;
  *)
    echo "ops/test.sh: unknown mode '$mode': must be dev, asan, tsan or full" >&2
    exit 2
    ;;
esac

ops/setup.sh

configure=()
if command -v ccache >/dev/null 2>&1; then
  # Paths below this folder are hashed as relative ones, so another clone finds the same objects.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  configure+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
# CUDA is compiled in the dev build alone, wherever its compiler is; its tests run where a device is.
cuda=""
if [ "$preset" = dev ]; then
  nvcc=${CUDACXX:-$(command -v nvcc || true)}
  release=$("${nvcc:-false}" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p' || true)
  if [ "${release:-0}" -ge 13 ]; then
    cuda="compiled"
    configure+=(-DSWAX_CUDA=ON)
    if command -v ccache >/dev/null 2>&1; then
      configure+=(-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
    fi
  else
    cuda="skipped: no nvcc 13"
    configure+=(-DSWAX_CUDA=AUTO)
  fi
fi
build=build/$preset
cmake --preset "$preset" -DSWAX_UNITY=ON "${configure[@]}"
cmake --build "$build" --target "$target"
built=$SECONDS

run=()
if [ "$mode" = full ]; then
  export SWAX_TEST_FULL=1
fi
if [ "$mode" = asan ]; then
  # A small quarantine: tests bound the resident memory.
  ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:quarantine_size_mb=16
  export ASAN_OPTIONS=$ASAN_OPTIONS:check_initialization_order=1:strict_string_checks=1
  export LSAN_OPTIONS=suppressions=$PWD/ops/check/lsan.supp:print_suppressions=0
fi
if [ "$mode" = tsan ]; then
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:history_size=4:suppressions=$PWD/ops/check/tsan.supp
  # The shadow memory of this ThreadSanitizer needs a fixed layout; some kernels randomise more
  # address bits than it knows. Where a container forbids the switch, it starts without it.
  if setarch -R true 2>/dev/null; then
    run=(setarch -R)
  fi
fi

log=$build/ctest.log
status=0
"${run[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error -j2 \
  "${select[@]}" "$@" 2>&1 | tee "$log" || status=$?

echo
echo "ops/test.sh $mode: set-up and build $((built - started)) s, tests $((SECONDS - built)) s," \
  "total $((SECONDS - started)) s"
if [ -n "$cuda" ]; then
  echo "ops/test.sh $mode: CUDA $cuda"
fi
# Why single tests were skipped: GoogleTest says it below the line that names the test, scripts in a line.
awk '/: Skipped$/ { getline; print "skipped: " $0 } /^skipped: /' "$build/Testing/Temporary/LastTest.log" |
  sort | uniq -c | sort -rn || true
grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$log" | tail -n 1 || true
if [ "$status" -ne 0 ]; then
  echo "ops/test.sh $mode: FAILED" >&2
  exit 1
fi
