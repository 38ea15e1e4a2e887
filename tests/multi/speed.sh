#!/bin/bash
# Measures several GPUs of one host: the training step, what it costs to exchange, PyTorch's FSDP2 beside it,
# memory, checkpoints, restarts, settings of NCCL. Every part runs whatever became of the others.
#
# Usage: tests/multi/speed.sh FOLDER [PART...]    (FOLDER: bin of a release build with CUDA)
#   step         1.4B, 16,384 tokens a sequence, one a rank: 1, 2, 4, 8 ranks; with all of them also beside
#                ncclReduceScatter and beside no exchange
#   sequences    the same with 4 sequences a rank and step
#   peer         the same model in PyTorch FSDP2, gradients reduced in fp32; needs torch and mlstm-kernels
#   peer-bf16    reduced in bf16
#   7b           7B over all GPUs, the first form of recompute that fits
#   checkpoints  1.4B: saves under load
#   restart      1.4B: from kill -9 of a rank to the next new step
#   settings     1.4B with 8 layers: copy engines or thread blocks, prefetch, weights given back
#   links        collectives alone and beside products, over the forms that NCCL has for them
# Without PART: all, in this order. Results on stdout, logs in $SPEED_OUT (./speed-results).
# SPEED_SECONDS: starts no part that may not end within so many seconds (3600). SPEED_FOLDER: where checkpoints
# are written (a folder below TMPDIR). PEER_PACKAGES: a folder with the package mlstm-kernels, where it is not
# installed. Exit 0: everything that was started ended well; 77: fewer than two GPUs.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
bin=$(cd "${1:?usage: tests/multi/speed.sh FOLDER [PART...]}" && pwd) || exit 2
shift
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(step peer 7b checkpoints links settings restart sequences peer-bf16)
out=${SPEED_OUT:-speed-results}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
seconds_max=${SPEED_SECONDS:-3600}
gpus=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU ' || true)
if [ "$gpus" -lt 2 ]; then
  echo "skipped: $gpus GPUs, needs 2"
  exit 77
fi
# Multicast objects of NVLink belong to the whole host.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 OPENBLAS_NUM_THREADS=1
scratch=$(mktemp -d "${SPEED_FOLDER:-${TMPDIR:-/tmp}}/swax-speed.XXXXXX") || exit 2
trap 'rm -rf -- "$scratch"' EXIT
failed=0

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }
numbers() { for n in 1 2 4 8; do [ "$n" -le "$gpus" ] && echo "$n"; done; }
most=$(numbers | tail -n 1)

# launch NUMBER: sets `launcher` to what starts one process a GPU, as the node agent does on one host
launch() {
  launcher=(mpirun)
  [ "$(id -u)" -ne 0 ] || launcher+=(--allow-run-as-root)
  launcher+=(--host "localhost:$1" --oversubscribe --bind-to none --mca plm isolated --mca pml ob1
    --mca btl "self,vader,tcp" --mca btl_vader_single_copy_mechanism none --mca btl_tcp_if_include lo
    --mca oob_tcp_if_include lo --mca shmem mmap --mca ras ^slurm -np "$1")
  [ "$1" -gt 1 ] || launcher=()
}

# measured NAME SECONDS PATTERN COMMAND...: runs what usually takes so long if that is left, with a limit; prints
# the lines of its log that match
measured() {
  local name=$1 usual=$2 pattern=$3 left=$((seconds_max - SECONDS)) limit status
  shift 3
  limit=$((usual * 5 / 2 < left ? usual * 5 / 2 : left))
  if [ "$left" -lt "$usual" ]; then
    say "$name: not started, $left s are left"
    return
  fi
  say "$name"
  timeout -k 10 "$limit" "$@" </dev/null >"$out/$name.log" 2>&1
  status=$?
  grep -E "$pattern" "$out/$name.log"
  [ "$status" -eq 0 ] && return
  failed=1
  say "$name FAILED, exit code $status; the end of its log:"
  tail -n 8 "$out/$name.log" | cut -c1-300
  return 1
}

lines='^not a release|^window|^memory: .*taken|^save|^checkpoint|recompute|nonfinite'
bench=$bin/cuda_ranks_bench
jobs=$repository/jobs

ranks_step() { # NAME SECONDS RANKS STEPS OPTIONS...: of 1.4B, everything stored
  local name=$1 usual=$2 ranks=$3 steps=$4
  shift 4
  launch "$ranks"
  measured "$name" "$usual" "$lines" "${launcher[@]}" "$bench" "$jobs/swax-1.4b.toml" "$steps" \
    --set activation_checkpoint.mode=none "$@"
}

part_step() {
  local n
  for n in $(numbers); do
    if [ "$n" -lt "$most" ]; then
      ranks_step "step-w$n" 25 "$n" 27
    else
      ranks_step "step-w$n" 35 "$n" 57 --ways --set optimizer.lr=1e-6
    fi
  done
}

part_sequences() { ranks_step "step-w$most-4" 35 "$most" 13 --set "training.global_batch_size=$((4 * most))"; }

# Not by the name of the host, which not every machine can look up.
part_peer() {
  local reduce=${1:-fp32} forms=${2:-flex,fa2}
  [ -z "${PEER_PACKAGES:-}" ] || export PYTHONPATH=$PEER_PACKAGES${PYTHONPATH:+:$PYTHONPATH}
  measured "fsdp2-$reduce" 60 '"kind"' python3 -m torch.distributed.run --nnodes 1 --nproc-per-node "$most" \
    --master-addr 127.0.0.1 --master-port 29511 "$repository/tests/bench/peer/fsdp2.py" --model 1.4b \
    --reduce "$reduce" --budget 100 --forms "$forms"
}

part_7b() {
  local run
  launch "$most"
  run=("${launcher[@]}" "$bench" "$jobs/swax-7b.toml" 25 --first 10 --ways --set optimizer.lr=1e-6)
  measured "7b-w$most" 75 "$lines" "${run[@]}" --fit ||
    measured "7b-light-w$most" 75 "$lines" "${run[@]}" --set activation_checkpoint.mode=light
}

part_checkpoints() {
  df -h "$scratch" | tail -n 1
  ranks_step "checkpoints-w$most" 70 "$most" 90 --checkpoints "$scratch/checkpoints" --set window.p=0 \
    --set checkpoint.interval=40 --set checkpoint.keep_latest_k=1
  rm -rf -- "$scratch/checkpoints"
}

part_restart() {
  measured "restart-w$most" 120 'kill -9' env TMPDIR="$scratch" python3 "$here/ranks_test.py" "$bin" \
    --restart "$jobs/swax-1.4b.toml" --set activation_checkpoint.mode=none --set checkpoint.interval=20 \
    --set checkpoint.keep_latest_k=1
}

# setting NAME [VARIABLE=VALUE | --set KEY=VALUE]: what differs from the form that is kept
setting() {
  local name=$1 variable=()
  shift
  case ${1:-} in
    NCCL_* | SWAX_*) variable=("$1") && shift ;;
  esac
  launch "$most"
  measured "settings-$name" 14 "^window" env "${variable[@]}" "${launcher[@]}" "$bench" "$jobs/swax-1.4b.toml" 33 \
    --ways --set model.layers=8 --set activation_checkpoint.mode=none --set optimizer.lr=1e-6 "$@"
}

part_settings() {
  setting kept
  setting thread-blocks SWAX_COMM_COPY_ENGINES=0
  setting given-back --set parallelism.fsdp_reshard_after_forward=always
  setting no-prefetch --set parallelism.prefetch=0
}

part_links() {
  launch "$most"
  measured "links-w$most" 25 '^[^ ]' "${launcher[@]}" "$bin/cuda_nccl_bench"
}

nvidia-smi topo -m 2>/dev/null | head -n $((gpus + 1))
for part in "${parts[@]}"; do
  case $part in
    step) part_step ;;
    sequences) part_sequences ;;
    peer) part_peer fp32 flex,fa2 ;;
    peer-bf16) part_peer bf16 flex ;;
    7b) part_7b ;;
    checkpoints) part_checkpoints ;;
    restart) part_restart ;;
    settings) part_settings ;;
    links) part_links ;;
    *)
      echo "speed.sh: no part \"$part\"" >&2
      failed=1
      ;;
  esac
done
say "done"
exit $failed
