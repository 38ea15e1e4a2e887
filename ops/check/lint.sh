#!/bin/sh
# Runs both checkers over the tree; ctest `lint` calls this. Exit 1 when one of them found an error.
cd "$(dirname "$0")/../.." || exit 2
status=0
python3 ops/check/check_includes.py || status=1
python3 ops/check/check_source.py || status=1
exit $status
