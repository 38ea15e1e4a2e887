#!/bin/sh
# Installs the Debian packages that swax builds and runs with. Safe to run again: when every
# package is present it touches nothing and needs neither root nor a network.
# Works as root, or as a user who may use sudo. Supported: Debian 12 (bookworm).
set -eu

# ccache is not in the list: ops/test.sh uses it where it exists and does without it elsewhere.
# Slurm and what follows it are for tests/slurm, which start a cluster of their own; nothing else here
# needs them, and the daemons of the machine itself stay without a configuration.
packages="
  cmake ninja-build g++ python3 pkg-config git ca-certificates
  libopenmpi-dev openmpi-bin
  libzmq3-dev cppzmq-dev
  librocksdb-dev
  libspdlog-dev
  libprotobuf-dev protobuf-compiler
  libgtest-dev libgmock-dev libbenchmark-dev
  libcli11-dev libtomlplusplus-dev libcpp-httplib-dev nlohmann-json3-dev libsimdjson-dev
  libopenblas-dev
  libxxhash-dev libzstd-dev zlib1g-dev zstd
  procps
  bible-kjv bible-kjv-text
  slurmctld slurmd slurm-client munge libpmix2 nftables iproute2 shellcheck
"

fail() {
  echo "ops/setup.sh: $*" >&2
  exit 1
}

missing_packages() {
  for package in $packages; do
    state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || printf ' %s' "$package"
  done
}

command -v dpkg-query >/dev/null 2>&1 ||
  fail "dpkg-query not found: swax supports Debian 12; elsewhere install these by hand: $packages"
missing=$(missing_packages)
if [ -z "$missing" ]; then
  echo "ops/setup.sh: all packages are present" >&2
  exit 0
fi

# Only an installation depends on the release: other systems may bring the packages themselves.
# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-unknown}")
[ "$release" = "debian 12" ] ||
  fail "this is $release; packages are installed on Debian 12 only. Missing here:$missing"

if [ "$(id -u)" -eq 0 ]; then
  as_root="env"
elif command -v sudo >/dev/null 2>&1; then
  as_root="sudo env"
else
  fail "needs root or sudo to install:$missing"
fi

# Another apt may hold the lock on a machine that has just started: wait for it, do not fail.
apt_get() {
  $as_root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 apt-get \
    -o DPkg::Lock::Timeout=500 -o Acquire::Retries=3 "$@"
}

echo "ops/setup.sh: installing$missing" >&2
# A broken list of some other repository must not stop us: the installation decides.
apt_get -q -y update >&2 || echo "ops/setup.sh: apt-get update failed, going on" >&2
# shellcheck disable=SC2086  # one word a package
apt_get -q -y install --no-install-recommends $missing >&2 ||
  fail "apt-get could not install:$missing"

missing=$(missing_packages)
[ -z "$missing" ] || fail "still missing after the installation:$missing"
echo "ops/setup.sh: done" >&2
