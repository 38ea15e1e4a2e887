#!/bin/bash
# Runs the GPU tests, then the benchmarks, from a folder that holds the programs: tests/bench/gpu.sh [FOLDER]
# FOLDER is a build's bin folder or a carried copy with its .so files in FOLDER/lib; default: where this
# script lies. Prints one line a test program and the end of what failed; full output in $OUT or FOLDER/out.
# GPU_ONLY=words: only programs whose name has one of the words. GPU_BENCH=0: no benchmarks.
# GPU_CHECK=memcheck|racecheck|synccheck|initcheck: instead, the tests of ops under that tool of compute-sanitizer,
# every op once, without the longest shapes, eight processes at a time; fails where the tool finds anything.
# racecheck leaves CudaBf16.Gemm out: of kernels of cuBLAS that work in clusters it reports every one (and its
# filter by names ends in an illegal address), and behind 100 reports it says no more.
set -uo pipefail
here=$(cd "${1:-$(dirname "$0")}" && pwd) || exit 2
out=${OUT:-$here/out}
mkdir -p "$out"
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/local/nvidia/lib64; do
  [ -d "$folder" ] && LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$folder
done
if ldd "$here"/cuda_*_test 2>/dev/null | grep 'libcublasLt.*not found' >/dev/null; then
  # Not beside the toolkit: Python packages carry it too.
  found=$(find / -xdev -name 'libcublasLt.so.13' 2>/dev/null | head -n 1)
  [ -n "$found" ] && LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$(dirname "$found")
fi

wanted() {
  local word
  [ -z "${GPU_ONLY:-}" ] && return 0
  for word in $GPU_ONLY; do
    [[ $1 == *$word* ]] && return 0
  done
  return 1
}

failed=0
started_any=0
refusing='*RefusesTokensOutside*:*RefusesTargetsBeyond*:*PlainFormIsAChain*' # what only the host can say

no_program() {
  echo "gpu.sh: no such test program in $here" >&2
  exit 2
}

# check TEST TOOL PART PARTS
check() {
  local name log status started=$SECONDS options=(--tool "$2" --error-exitcode 9)
  name="$(basename "$1") under $2, part $3 of $4"
  log=$out/$(basename "$1").$2.$3.log
  [ "$2" != memcheck ] || options+=(--report-api-errors no)
  GTEST_SHARD_INDEX=$3 GTEST_TOTAL_SHARDS=$4 timeout "${GPU_TEST_TIMEOUT:-240}" \
    compute-sanitizer "${options[@]}" "$1" "--gtest_filter=-$left_out" >"$log" 2>&1 &
  trap "kill $! 2>/dev/null" TERM
  wait $!
  status=$?
  # Warnings count too; and a test may find no device.
  [ $status -ne 0 ] || grep -qE 'SUMMARY: 0 (errors|hazards)' "$log" || status=9
  ! grep -q 'None ran' "$log" || status=77
  echo "$name: status $status, $((SECONDS - started)) s: $(grep -E 'SUMMARY|PASSED' "$log" | tr '\n' ' ')"
  [ $status -eq 0 ] && return
  grep -E '^\[  FAILED|Failure|Race|=========.* error' "$log" | cut -c1-220 | head -12
  return 1
}
if [ -n "${GPU_CHECK:-}" ]; then
  export SWAX_TEST_RUNS=1
  left_out=$refusing:'*LongSequence*:*ModelShape*:*ManyChunks*:*SameBits*:*GoesOnBeyond*:*SeveralLevels*:*TooLargeOnes*'
  [ "$GPU_CHECK" != racecheck ] || left_out+=:CudaBf16.Gemm
  jobs=()
  command -v compute-sanitizer >/dev/null || { echo "gpu.sh: no compute-sanitizer on the PATH" >&2 && exit 2; }
  trap 'kill "${jobs[@]}" 2>/dev/null; exit 130' INT TERM
  for test in "$here"/cuda_{ops,swa,mlstm}_test; do
    [ -x "$test" ] && wanted "$(basename "$test")" || continue
    parts=$("$test" --gtest_list_tests "--gtest_filter=-$left_out" | grep -c '^  ')
    [ "$parts" -gt 0 ] || { echo "$(basename "$test"): no test" && failed=1; }
    [ "$parts" -le 8 ] || parts=8
    for part in $(seq 0 $((parts - 1))); do
      [ ${#jobs[@]} -lt 8 ] || { wait "${jobs[0]}" || failed=1; jobs=("${jobs[@]:1}"); }
      check "$test" "$GPU_CHECK" "$part" "$parts" &
      jobs+=($!)
      started_any=1
    done
  done
  for job in "${jobs[@]}"; do wait "$job" || failed=1; done
  [ $started_any = 1 ] || no_program
  exit $failed
fi

for test in "$here"/cuda_*_test; do
  name=$(basename "$test")
  [ -x "$test" ] && wanted "$name" || continue
  started=$SECONDS
  started_any=1
  timeout "${GPU_TEST_TIMEOUT:-240}" "$test" --gtest_brief=1 "--gtest_filter=-$refusing" >"$out/$name.log" 2>&1
  status=$?
  summary=$(grep -E 'tests ran|PASSED|SKIPPED' "$out/$name.log" | tr '\n' ' ')
  echo "$name: status $status, $((SECONDS - started)) s: $summary"
  if [ $status -ne 0 ]; then
    failed=1
    grep -E '^\[  FAILED|Failure|error|bound|wrote' "$out/$name.log" | cut -c1-220 | head -40
  fi
done
if [ "${GPU_BENCH:-1}" != 0 ]; then
  for bench in "$here"/cuda_*_bench; do
    name=$(basename "$bench")
    [ -x "$bench" ] && wanted "$name" || continue
    echo "== $name"
    started_any=1
    timeout "${GPU_BENCH_TIMEOUT:-180}" "$bench" 2>&1 | tee "$out/$name.log"
  done
fi
[ $started_any = 1 ] || no_program
exit $failed
