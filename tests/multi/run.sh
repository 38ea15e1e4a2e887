#!/bin/bash
# Goal: several GPUs of one host compute what one does, and a rank that is lost or stopped costs time alone.
# Method: nccl_collectives_test (the bytes of every call, hangs, aborts), then ranks_test.py (whole runs).
#
# Usage: tests/multi/run.sh FOLDER    (FOLDER: bin of a CUDA build, or of a bundle)
# Exit codes: 0 passed, 1 failed, 77 skipped: fewer than two GPUs. Takes about three minutes.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "${1:?usage: tests/multi/run.sh FOLDER}" && pwd) || exit 2
gpus=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU ' || true)
if [ "$gpus" -lt 2 ]; then
  echo "skipped: $gpus GPUs, needs 2"
  exit 77
fi
export NCCL_NVLS_ENABLE=0 # multicast objects of NVLink belong to the whole host

failed=0
if [ -x "$bin/nccl_collectives_test" ]; then
  log=$(mktemp)
  timeout 120 "$bin/nccl_collectives_test" --gtest_brief=1 >"$log" 2>&1
  status=$?
  echo "nccl_collectives_test: exit code $status, $SECONDS s: $(tail -n 1 "$log")"
  if [ $status -ne 0 ]; then
    failed=1
    grep -vE '^\[(=|-| RUN|       OK)' "$log" | tail -n 40
  fi
  rm -f "$log"
fi
python3 "$here/ranks_test.py" "$bin" || failed=1
exit $failed
