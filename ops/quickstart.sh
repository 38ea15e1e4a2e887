#!/bin/bash
# Sets the machine up, builds swax, trains a small model on this machine with two ranks and shows
# what it has learned. Words after the name go to `swax run`:
#   ops/quickstart.sh --set training.steps=50 --ranks 4 --state runs/short
# Typed again it goes on from the newest checkpoint, or shows the result of the finished run.
# Exits as `swax run` does. With --output json stdout has nothing but what `swax run` prints.
set -euo pipefail
cd "$(dirname "$0")/.."

ops/setup.sh

configure=()
if command -v ccache >/dev/null 2>&1; then
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  configure+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
cmake --preset release -DSWAX_UNITY=ON "${configure[@]}" >&2
cmake --build build/release --target swax swax-train >&2
swax=build/release/bin/swax

# Our defaults, unless the caller names the option: an option given twice is an error.
ranks=(--ranks 2) state=runs/quickstart set_state=(--state runs/quickstart) report=1 previous=""
for word in "$@"; do
  case $word in
    --ranks | --ranks=*) ranks=() ;;
    --state) set_state=() ;;
    --state=*) set_state=() state=${word#*=} ;;
    -o* | --output | --output=* | -h | --help) report=0 ;;
  esac
  if [ "$previous" = --state ]; then
    state=$word
  fi
  previous=$word
done

if [ "$report" -eq 0 ]; then
  exec "$swax" run jobs/quickstart.toml "${ranks[@]}" "${set_state[@]}" "$@"
fi
"$swax" run jobs/quickstart.toml "${ranks[@]}" "${set_state[@]}" "$@"

echo
echo "Simple models on the same validation text:"
"$swax" data baseline --state "$state"
echo
echo "Checkpoints:"
"$swax" checkpoints list --state "$state"
echo
echo "The model goes on from \"In the beginning\":"
"$swax" generate --state "$state" --prompt "In the beginning"
