#!/bin/bash
# Goal: a run on several GPUs of one host has the bits of a run on one, whatever happens to its ranks.
# Method: real runs of the 125m preset over NCCL with 1, 2, 4, 8 ranks as far as there are GPUs:
#   1. nccl_collectives_test: the bytes of every call, hangs, aborts
#   2. equal losses, gradient norms and digests for every number of ranks (`swax diff`)
#   3. kill -9 of a rank, then the same run typed again with another number of ranks: the same digest
#   4. a stopped rank: the collective ends within its limit and the late rank is named
#
# Usage: tests/multi/run.sh FOLDER    (FOLDER: bin of a build or of a bundle, with a CUDA build's programs)
# MULTI_STEPS: steps of a run (40). Exit codes: 0 passed, 1 failed, 77 skipped: fewer than two GPUs.
set -euo pipefail

repository=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(cd "${1:?usage: tests/multi/run.sh FOLDER}" && pwd)
steps=${MULTI_STEPS:-40}
gpus=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU ' || true)
if [ "$gpus" -lt 2 ]; then
  echo "skipped: $gpus GPUs, needs 2"
  exit 77
fi
# Multicast objects of NVLink belong to the whole host.
export NCCL_NVLS_ENABLE=0
folder=$(mktemp -d "${TMPDIR:-/tmp}/swax-multi.XXXXXX")
trap 'rm -rf -- "$folder"' EXIT

fail() {
  echo "tests/multi/run.sh: $*" >&2
  for log in "$folder"/*.err; do [ -f "$log" ] && tail -n 5 "$log" >&2; done
  exit 1
}
say() { printf '== %s s: %s\n' "$SECONDS" "$*"; }

if [ -x "$bin/nccl_collectives_test" ]; then
  say "collectives"
  "$bin/nccl_collectives_test" --gtest_brief=1 >"$folder/collectives.err" 2>&1 || fail "collectives"
  tail -n 1 "$folder/collectives.err"
fi

for number in $(seq 1 20000); do
  printf 'Of the %s sheep that the shepherd counted, number %s was the first to sleep.\n\n' $((number * 7)) "$number"
done >"$folder/text"
sed "s|^path = .*|text = \"file:$folder/text\"|" "$repository/jobs/125m.toml" >"$folder/125m.toml"
settings=(--set training.backend=cuda --set training.global_batch_size=8 --set "training.steps=$steps"
  --set lr_scheduler.warmup_steps=5 --set checkpoint.interval=10 --set validation.freq=20 --set validation.sequences=8)

train() { # NAME RANKS
  "$bin/swax" run "$folder/125m.toml" --state "$folder/$1" --ranks "$2" "${settings[@]}" -o json \
    >"$folder/$1.json" 2>>"$folder/$1.err"
}
digest() { sed -n 's/.*"digest": *"\([0-9a-f]\{32\}\)".*/\1/p' "$folder/$1.json" | tail -n 1; }

want=""
for ranks in 1 2 4 8; do
  [ "$ranks" -le "$gpus" ] || break
  begin=$SECONDS
  train "w$ranks" "$ranks" || fail "run with $ranks ranks"
  got=$(digest "w$ranks")
  say "$ranks ranks: digest $got, $((SECONDS - begin)) s"
  [ -n "$want" ] || want=$got
  [ -n "$got" ] && [ "$got" = "$want" ] || fail "$ranks ranks: digest $got, one rank: $want"
  [ "$ranks" -eq 1 ] || "$bin/swax" diff "$folder/w1" "$folder/w$ranks" >"$folder/diff.err" ||
    fail "$ranks ranks: $(cat "$folder/diff.err")"
  most=$ranks
done

rank_pid() { # STATE RANK: the process of that rank
  local entry
  for entry in /proc/[0-9]*; do
    if [ "$(cat "$entry/comm" 2>/dev/null)" = swax-train ] && tr '\0' ' ' <"$entry/cmdline" | grep -- "$1" >/dev/null &&
      tr '\0' '\n' <"$entry/environ" | grep -x "OMPI_COMM_WORLD_RANK=$2" >/dev/null; then
      basename "$entry"
      return
    fi
  done 2>/dev/null
}
await_step() { # STATE STEP PID: until a checkpoint of that step is committed, or the run has ended
  local end=$((SECONDS + 120))
  until "$bin/swax" checkpoints list --state "$1" -o json 2>/dev/null | grep "\"step\": *$2\b" >/dev/null; do
    kill -0 "$3" 2>/dev/null && [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.2
  done
}

say "kill -9 of rank 1 of $most, then one rank fewer by half"
train killed "$most" &
run=$!
await_step "$folder/killed" 10 $run || fail "the run to be killed made no checkpoint"
victim=$(rank_pid "$folder/killed" 1)
[ -z "$victim" ] || kill -9 "$victim"
kill -INT $run 2>/dev/null || true
wait $run || true
train killed $((most / 2)) || fail "the run after kill -9"
[ "$(digest killed)" = "$want" ] || fail "after kill -9: digest $(digest killed), want $want"

say "a stopped rank"
export SWAX_COMM_LIMIT_MS=5000
train stopped "$most" &
run=$!
await_step "$folder/stopped" 10 $run || fail "the run to be stopped made no checkpoint"
victim=$(rank_pid "$folder/stopped" 1)
if [ -n "$victim" ]; then
  kill -STOP "$victim"
  wait $run || fail "the run with a stopped rank"
  grep -rhq "late: rank 1 " "$folder/stopped/logs" || fail "no log names the late rank"
  [ "$(digest stopped)" = "$want" ] || fail "after a stopped rank: digest $(digest stopped), want $want"
else
  wait $run || fail "the run that was too fast to be stopped"
fi
say "passed on $gpus GPUs, $steps steps, digest $want"
