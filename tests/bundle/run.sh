#!/bin/bash
# Goal: a bundle runs on a machine that has none of the packages, in a folder that it was not made for.
# Method: `cmake --install`, then a root with nothing but the C library, /bin/sh and three programs of
# coreutils (or one of debootstrap), the bundle somewhere in it, no network but 127.0.0.1; there `swax
# version`, `swax doctor` and a run with two ranks, whose digest must be that of the build tree.
#
# Usage: tests/bundle/run.sh BUILD [--debootstrap URL] [--keep]
# Exit codes: 0 passed, 1 failed, 77 skipped: not root, or namespaces are not allowed.
set -euo pipefail

repository=$(cd "$(dirname "$0")/../.." && pwd)
build="" mirror="" keep=0
while [ $# -gt 0 ]; do
  case $1 in
    --debootstrap) mirror=${2:?} && shift 2 ;;
    --keep) keep=1 && shift ;;
    *) build=$1 && shift ;;
  esac
done
[ -x "$build/bin/swax-train" ] || { echo "usage: tests/bundle/run.sh BUILD [--debootstrap URL] [--keep]" >&2; exit 2; }
build=$(cd "$build" && pwd)
skip() {
  echo "skipped: $*"
  exit 77
}
fail() {
  echo "tests/bundle/run.sh: $*" >&2
  exit 1
}
[ "$(id -u)" -eq 0 ] || skip "needs root (chroot)"
unshare --mount --pid --net --fork true 2>/dev/null || skip "this machine allows no namespaces"

folder=$(mktemp -d "${TMPDIR:-/tmp}/swax-bundle.XXXXXX")
cleanup() {
  status=$?
  if [ "$keep" -eq 1 ]; then
    echo "kept: $folder"
  elif ! grep -q " ${folder}[/ ]" /proc/self/mountinfo; then
    rm -rf --one-file-system -- "$folder"
  fi
  exit "$status"
}
trap cleanup EXIT
root=$folder/root

# Only what is named here exists in it.
make_root() {
  if [ -n "$mirror" ]; then
    debootstrap --variant=minbase bookworm "$root" "$mirror" >"$folder/debootstrap.log" 2>&1 ||
      fail "debootstrap failed: $(tail -n 3 "$folder/debootstrap.log")"
    return
  fi
  mkdir -p "$root"/{bin,etc,lib,lib64,proc,sys,dev,tmp,usr/bin}
  local program library
  for program in sh readlink dirname basename; do
    cp -L "$(command -v $program)" "$root/bin/"
  done
  for library in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0 libresolv.so.2 \
    libutil.so.1; do
    library=$(ldconfig -p | awk -v name="$library" '$1 == name && /x86-64/ && !found { found = $NF } END { print found }')
    [ -z "$library" ] || cp -L "$library" "$root/lib/"
  done
  cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
  echo "root:x:0:0:root:/tmp:/bin/sh" >"$root/etc/passwd"
  echo "root:x:0:" >"$root/etc/group"
}

# in_root COMMAND: with the bundle's bin and /bin on the PATH.
in_root() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount --uts --ipc --pid --net --fork --kill-child bash -c '
    set -eu
    root=$1 command=$2
    hostname no-such-host
    ip link set lo up 2>/dev/null || true
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --bind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    exec env -i PATH=/opt/a.b/swax/bin:/bin HOME=/tmp TERM=dumb \
      "$(command -v chroot)" "$root" sh -c "$command" </dev/null
  ' in_root "$root" "$1"
}

install_log=$folder/install.log
cmake --install "$build" --prefix "$folder/prefix/swax" >"$install_log" 2>&1 || fail "install: $(tail -n 5 "$install_log")"
make_root
mkdir -p "$root/opt/a.b" "$root/srv"
mv "$folder/prefix/swax" "$root/opt/a.b/"
[ -f "$root/etc/hosts" ] && [ -s "$root/etc/hosts" ] || echo "127.0.0.1 localhost" >"$root/etc/hosts"

for number in $(seq 1 400); do
  printf 'Of the %s sheep that the shepherd counted, number %s was the first to sleep.\n\n' $((number * 7)) "$number"
done >"$root/srv/text"
sed 's|debian:kjv|file:/srv/text|' "$repository/jobs/micro.toml" >"$root/srv/micro.toml"
sed "s|debian:kjv|file:$root/srv/text|" "$repository/jobs/micro.toml" >"$folder/micro.toml"
settings="--ranks 2 --set training.steps=12 --set validation.sequences=1 -o json"

want=$("$build/bin/swax" version)
got=$(in_root "swax version") || fail "swax version does not run"
[ "$got" = "$want" ] || fail "swax version says '$got', the build '$want'"

in_root "cd /srv && swax doctor --state /srv/runs" >"$folder/doctor.txt" 2>&1 ||
  fail "swax doctor: $(cat "$folder/doctor.txt")"
grep -q '/opt/a.b/swax/lib/librocksdb' "$folder/doctor.txt" || fail "the libraries are not the bundle's: $(cat "$folder/doctor.txt")"

digest() { sed -n 's/.*"digest": *"\([0-9a-f]*\)".*/\1/p' "$1" | tail -n 1; }
in_root "cd /srv && swax run /srv/micro.toml --state /srv/run $settings" >"$folder/inside.json" 2>"$folder/inside.log" ||
  fail "swax run: $(tail -n 20 "$folder/inside.log")"
# shellcheck disable=SC2086  # words on purpose
"$build/bin/swax" run "$folder/micro.toml" --state "$folder/run" $settings >"$folder/outside.json" 2>"$folder/outside.log" ||
  fail "swax run of the build tree: $(tail -n 20 "$folder/outside.log")"
inside=$(digest "$folder/inside.json") outside=$(digest "$folder/outside.json")
[ -n "$inside" ] && [ "$inside" = "$outside" ] || fail "digest '$inside' in the bundle, '$outside' in the build tree"

echo "passed: $(du -sm "$root/opt/a.b/swax" | cut -f 1) MiB, $(find "$root/opt/a.b/swax" -name '*.so*' -type f | wc -l) libraries and plugins, digest $inside"
