#!/bin/bash
# Sets the machine up, builds swax and trains a small model on this machine with two ranks.
# Words after the name go to `swax run`: ops/quickstart.sh --set training.steps=50 --ranks 4
# Typed again it goes on from the newest checkpoint, or shows the result of the finished run.
set -euo pipefail
cd "$(dirname "$0")/.."

ops/setup.sh

configure=()
if command -v ccache >/dev/null 2>&1; then
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  configure+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
cmake --preset release "${configure[@]}" >&2
cmake --build build/release --target swax swax-train >&2

ranks=(--ranks 2)
for word in "$@"; do
  case $word in
    --ranks | --ranks=*) ranks=() ;;
  esac
done
exec build/release/bin/swax run jobs/quickstart.toml "${ranks[@]}" "$@"
