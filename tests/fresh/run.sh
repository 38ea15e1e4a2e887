#!/bin/bash
# Goal: the README's two commands work on a Debian 12 that has never seen swax.
# Method: makes a minbase root, copies the committed tree into it as a clone, and runs
#   1. ops/quickstart.sh   with the network (it installs the packages through apt)
#   2. ops/test.sh         with no network but 127.0.0.1 and with IPv6 off
#   3. ops/quickstart.sh --state runs/offline   under the same conditions as 2
# once as root and once, in a second root, as a user with sudo. Everywhere the host has a name that
# does not resolve, LANG and all other variables are unset, and no process may be left at the end.
# The trained model must beat the byte 4-gram that quickstart prints beside it, and 3 must end with the
# digest of 1. How long `swax run` took is printed, with a warning above 240 s: machines differ.
# IPv6 is switched off through /proc/sys/net, which belongs to the network namespace of step 2 and 3;
# step 1 shares the network of this machine, whose settings are not touched.
#
# Usage: tests/fresh/run.sh [--mirror URL] [--dir FOLDER] [--only root|user] [--setup-only] [--keep]
#   --mirror      Debian mirror; default: the first one in this machine's apt sources
#   --dir         where the roots and logs go (default: a new folder in /var/tmp; needs 12 GB)
#   --setup-only  instead of the steps above run ops/setup.sh twice
#   --keep        leave the roots for a look
# Needs root and debootstrap. Takes about an hour; it is not part of CI.
set -euo pipefail

repository=$(cd "$(dirname "$0")/../.." && pwd)
mirror="" folder="" only="root user" setup_only=0 keep=0

usage() {
  echo "usage: tests/fresh/run.sh [--mirror URL] [--dir FOLDER] [--only root|user] [--setup-only] [--keep]" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --mirror) mirror=${2:?} && shift 2 ;;
    --dir) folder=${2:?} && shift 2 ;;
    --only) only=${2:?} && shift 2 ;;
    --setup-only) setup_only=1 && shift ;;
    --keep) keep=1 && shift ;;
    *) usage ;;
  esac
done
case $only in root | user | "root user") ;; *) usage ;; esac

say() { printf '== %s %s\n' "$(date +%T)" "$*"; }
fail() {
  echo "tests/fresh/run.sh: $*" >&2
  exit 1
}
[ "$(id -u)" -eq 0 ] || fail "needs root (debootstrap, mounts, namespaces)"
for tool in debootstrap unshare ip git; do
  command -v "$tool" >/dev/null || fail "$tool not found: apt-get install debootstrap util-linux iproute2 git"
done

# The first Debian archive of this machine, from one-line or deb822 sources.
host_mirror() {
  local lists=/etc/apt/sources.list.d
  { cat /etc/apt/sources.list $lists/*.list $lists/*.sources 2>/dev/null || true; } |
    awk '$1 == "deb" && / bookworm / { for (i = 2; i <= NF; i++) if ($i ~ /^[a-z+]+:\/\//) print $i }
         $1 == "URIs:" { uri = $2 }
         $1 == "Suites:" && / bookworm( |$)/ { print uri }' |
    sed -n 1p
}
[ -n "$mirror" ] || mirror=$(host_mirror)
[ -n "$mirror" ] || fail "no mirror in this machine's apt sources: give --mirror URL"

[ -n "$folder" ] || folder=$(mktemp -d /var/tmp/swax-fresh.XXXXXX)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# All mounts live in the mount namespace of one run and end with it. Nothing is deleted before
# this machine's own table shows no mount below the folder, and never across a file system.
remove_root() {
  if grep -q " $1[/ ]" /proc/self/mountinfo; then
    echo "tests/fresh/run.sh: something is still mounted below $1: left as it is" >&2
    return 1
  fi
  rm -rf --one-file-system -- "$1"
}
cleanup() {
  status=$?
  if [ "$keep" -eq 0 ]; then
    for name in base root user; do
      if [ -d "$folder/$name" ]; then
        remove_root "$folder/$name" || status=1
      fi
    done
  else
    echo "roots kept in $folder"
  fi
  exit "$status"
}
trap cleanup EXIT

# Proxy and date settings of this machine's apt, so that apt works inside as it does here.
apt_settings() {
  apt-config dump | grep -E '^Acquire::((http|https|ftp)(::|-)[^ ]*|Check-[A-Za-z-]*|Retries) "[^"]+";' || true
}

make_base() {
  say "debootstrap minbase from $mirror"
  debootstrap --variant=minbase bookworm "$folder/base" "$mirror" >"$folder/debootstrap.log" 2>&1 ||
    fail "debootstrap failed: see $folder/debootstrap.log"
  echo "deb $mirror bookworm main" >"$folder/base/etc/apt/sources.list"
  apt_settings >"$folder/base/etc/apt/apt.conf.d/90host"
  cp -L /etc/resolv.conf "$folder/base/etc/resolv.conf"
  echo "127.0.0.1 localhost" >"$folder/base/etc/hosts"
  echo "no-such-host" >"$folder/base/etc/hostname"
  rm -f "$folder/base/etc/default/locale"
}

# in_root ROOT USER online|offline COMMAND: runs COMMAND in the clone inside ROOT.
in_root() {
  local root=$1 user=$2 network=$3 command=$4 flags=(--mount --uts --ipc --pid --fork --kill-child)
  [ "$network" = online ] || flags+=(--net)
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare "${flags[@]}" bash -c '
    set -eu
    root=$1 user=$2 network=$3 command=$4
    hostname no-such-host
    if [ "$network" = offline ]; then
      ip link set lo up
      for device in all default lo; do
        echo 1 >"/proc/sys/net/ipv6/conf/$device/disable_ipv6" 2>/dev/null || true
      done
    fi
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount --bind /dev "$root/dev"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    if [ "$network" = offline ] && [ -s "$root/proc/net/if_inet6" ]; then
      echo "IPv6 is still on inside" >&2
      exit 1
    fi
    home=/root path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    [ "$user" = root ] || home=/home/$user path=/usr/local/bin:/usr/bin:/bin
    status=0
    env -i PATH="$path" HOME="$home" TERM=dumb \
      "$(command -v chroot)" --userspec="$user:$user" --groups="" "$root" \
      sh -c "cd $home/swax && $command" </dev/null || status=$?
    # This shell is process 1 of its own process namespace: whoever else lives was left behind.
    sleep 1
    for entry in "$root"/proc/[0-9]*; do
      pid=${entry##*/}
      state=$(sed "s/.*) //" "$entry/stat" 2>/dev/null | cut -c 1)
      case $pid:$state in 1:* | *:Z | *:) continue ;; esac
      echo "left behind: $pid $(tr "\0" " " <"$entry/cmdline" 2>/dev/null || true)" >&2
      status=99
    done
    exit $status
  ' in_root "$root" "$user" "$network" "$command"
}

log_of() { echo "$folder/$(echo "$1" | tr -c 'a-z0-9\n' '-').log"; }

step() {
  local title=$1 log started=$SECONDS
  shift
  log=$(log_of "$title")
  say "$title"
  if in_root "$@" >"$log" 2>&1; then
    say "$title: passed in $((SECONDS - started)) s"
    summary+=("passed  $((SECONDS - started)) s  $title")
  else
    tail -n 40 "$log" >&2
    fail "$title: failed; the whole output is in $log"
  fi
}

# check_quickstart LOG EVENTS: what ops/quickstart.sh printed, and `swax events` of its run as JSON.
# Sets digest.
check_quickstart() {
  local log=$1 events=$2 bits baseline seconds
  bits=$(sed -n 's/^validation  *\([0-9][0-9.]*\) bits per byte$/\1/p' "$log" | tail -n 1)
  baseline=$(awk '$1 == 4 && $3 == "asked" { print $2 }' "$log" | tail -n 1)
  digest=$(sed -n 's/^digest  *\([0-9a-f]\{32\}\)$/\1/p' "$log" | tail -n 1)
  if [ -z "$bits" ] || [ -z "$baseline" ] || [ -z "$digest" ]; then
    fail "$log: validation \"$bits\", 4-gram \"$baseline\", digest \"$digest\": one is missing"
  fi
  awk -v bits="$bits" -v baseline="$baseline" 'BEGIN { exit !(bits < baseline) }' ||
    fail "$log: validation of $bits bits per byte does not beat the 4-gram, $baseline"
  seconds=$(sed -n 's/.*"wall_ms": *\([0-9][0-9]*\).*/\1/p' "$events" |
    awk 'NR == 1 { first = $1 } { last = $1 } END { if (NR > 1) printf "%d", (last - first) / 1000 }')
  [ -n "$seconds" ] || fail "$events: no times in it"
  say "validation $bits bits per byte, 4-gram $baseline; digest $digest; swax run took $seconds s"
  summary+=("        $bits bits per byte (4-gram $baseline), digest $digest, swax run $seconds s")
  [ "$seconds" -le 240 ] || say "warning: two free cores should need at most 240 s"
}

prepare() {
  local user=$1 root=$folder/$1 home=/root
  cp -a "$folder/base" "$root"
  if [ "$user" != root ]; then
    home=/home/$user
    mkdir -p "$root$home"
    step "user: install sudo" "$root" root online \
      "true; apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends sudo"
    chroot "$root" useradd --home-dir "$home" --shell /bin/sh "$user"
    echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
    chmod 0440 "$root/etc/sudoers.d/$user"
  fi
  git clone -q --no-hardlinks "$repository" "$root$home/swax"
  chroot "$root" chown -R "$user:$user" "$home"
}

judge_quickstart() {
  local title=$1 state=$2
  shift 2
  step "$title: events" "$@" offline "build/release/bin/swax events --state runs/$state -o json"
  check_quickstart "$(log_of "$title")" "$(log_of "$title: events")"
}

run_as() {
  local user=$1 root=$folder/$1 title first
  prepare "$user"
  # The second root takes the packages that the first one has fetched; apt checks them again.
  if [ "$user" = user ] && [ -d "$folder/root/var/cache/apt/archives" ]; then
    cp "$folder"/root/var/cache/apt/archives/*.deb "$root/var/cache/apt/archives/" 2>/dev/null || true
  fi
  if [ "$setup_only" -eq 1 ]; then
    step "$user: ops/setup.sh" "$root" "$user" online ops/setup.sh
    step "$user: ops/setup.sh again, offline" "$root" "$user" offline ops/setup.sh
  else
    title="$user: ops/quickstart.sh"
    step "$title" "$root" "$user" online ops/quickstart.sh
    judge_quickstart "$title" quickstart "$root" "$user"
    first=$digest
    step "$user: ops/test.sh, offline" "$root" "$user" offline ops/test.sh
    title="$user: ops/quickstart.sh, offline"
    step "$title" "$root" "$user" offline "ops/quickstart.sh --state runs/offline"
    judge_quickstart "$title" offline "$root" "$user"
    [ "$digest" = "$first" ] || fail "$title: digest $digest, the first run's is $first"
  fi
}

summary=()
make_base
for user in $only; do
  run_as "$user"
done
say "all passed; logs are in $folder"
printf '%s\n' "${summary[@]}"
