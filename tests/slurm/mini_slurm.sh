#!/usr/bin/env bash
# mini_slurm.sh - a throw-away Slurm cluster on one machine, for tests.
#
#   mini_slurm.sh start DIR N           start a head and nodes n1..nN, keep everything in DIR
#   mini_slurm.sh stop DIR              end everything that start began (one kill, nothing is left over)
#   mini_slurm.sh exec DIR CMD...       run CMD on the head (sbatch, srun, sinfo, your coordinator, ...)
#   mini_slurm.sh node-exec DIR n2 CMD...  run CMD on a node, outside Slurm
#   mini_slurm.sh rsh DIR n2 CMD...     the same, for use on the head itself; an ssh stand-in (mpirun's plm_rsh_agent)
#   mini_slurm.sh kill-node DIR n2      power cut: slurmd, its steps and all tasks die by SIGKILL at once
#   mini_slurm.sh kill-slurmd DIR n2    only slurmd dies; steps and tasks go on
#   mini_slurm.sh start-node DIR n2     power the node up again
#   mini_slurm.sh cut DIR n2            pull the network cable      (heal DIR n2 plugs it in again)
#   mini_slurm.sh drop DIR n2           silently drop all packets   (undrop DIR n2)    needs nftables
#   mini_slurm.sh slow DIR n2 RATE      bandwidth of its link, both ways (80mbit)
#   mini_slurm.sh kill-ctld DIR         SIGKILL slurmctld           (start-ctld DIR starts it again from its state)
#   mini_slurm.sh wait-state DIR n2 down 60   wait until sinfo shows that state
#   mini_slurm.sh status DIR
#
# How: one "lab" process tree in its own pid, net, mount and uts namespaces is the head node; it holds a
# bridge without any uplink. Each node is a nested set of namespaces with its own host name, address,
# process tree, /dev/shm and SlurmdSpoolDir. The file system is shared, as a cluster's home would be.
# Killing the lab's first process ends every daemon, job and namespace. Only DIR is written to.
# Needs: root, Debian 12 packages slurmctld slurmd slurm-client munge iproute2 util-linux procps
# (+ libpmix2 for srun --mpi=pmix, + nftables for drop). No systemd, no cgroups, no ssh, no Docker.
#
# Knobs (environment of start):
#   SLURMD_TIMEOUT (s, 8), MESSAGE_TIMEOUT (s, 5)  2 and 1 make node failures show in about 5 s
#   CRED_EXPIRE (s, 5 is the least Slurm takes)    a requeued job waits one second more than this
#   KILL_WAIT (s, 5)     from SIGTERM to SIGKILL
#   CPUS (2), MEM_MB (4000)  what each node says it has
#   GRES (e.g. gpu:2)    made-up device files; jobs get CUDA_VISIBLE_DEVICES as on a GPU cluster
#   ACCT=1               sacct works (needs mariadb-server-core slurmdbd slurm-wlm-mysql-plugin)
#   KEEP_STATE=1         do not wipe an earlier run's state and logs
#   LIFETIME (s, 3600)   the lab ends by itself after that
#   SUBNET (10.77.0)     labs do not see each other, so several may use the same
#   SHARED_TMP=1         all nodes see the machine's /tmp; else each has its own (DIR must lie elsewhere then)
#   SEEN (/tmp/a:/tmp/b) folders of the machine's /tmp that a node sees in its own one, as programs built there
#   EXTRA_CONF           lines for slurm.conf
# Node names stand in slurm.conf with their addresses and nowhere else: nothing here resolves names.
# shellcheck disable=SC2016  # the words in single quotes are for the shells inside the namespaces
set -euo pipefail

die() { echo "mini_slurm: $*" >&2; exit 1; }
usage() { sed -n '4,18p' "$0" | sed 's/^# \{0,1\}//'; exit 2; }
[ $# -ge 2 ] || usage
cmd=$1; DIR=$(realpath -m "$2"); shift 2
[ "$(id -u)" = 0 ] || die "needs root"
[ ${#DIR} -le 80 ] || die "DIR too long for a unix socket path"
SELF=$(realpath "$0")
SUBNET=${SUBNET:-10.77.0}
SHARED_TMP=${SHARED_TMP:-0}
SEEN=${SEEN:-}
if [ "$cmd" != start ]; then  # what start was told holds for the cluster's life, not for the next one
  [ -f "$DIR/shared_tmp" ] && SHARED_TMP=$(cat "$DIR/shared_tmp")
  [ -f "$DIR/seen" ] && SEEN=$(cat "$DIR/seen")
  [ -f "$DIR/subnet" ] && SUBNET=$(cat "$DIR/subnet")
fi

# The lab is alive only if the pid still runs our marker command (guards against pid reuse).
lab_pid() {
  local p; p=$(cat "$DIR/run/lab.pid" 2>/dev/null) || return 1
  grep -qz "mini-slurm-lab:$DIR" "/proc/$p/cmdline" 2>/dev/null && echo "$p"
}
# Run something on the head. SLURM_CONF and the Open MPI root switches are set for it.
in_lab() {
  local p; p=$(lab_pid) || die "no running cluster in $DIR"
  nsenter -t "$p" -n -m -u -p -- env -C "$PWD" SLURM_CONF="$DIR/slurm.conf" MINI_SLURM_DIR="$DIR" \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$@"
}
ip_of() { echo "$SUBNET.${1#n}"; }

write_conf() {
  local n=$1 i node_lines="" gres_line="" node_gres=""
  printf '127.0.0.1 localhost\n%s.250 head\n' "$SUBNET" >"$DIR/hosts"
  if [ -n "${GRES:-}" ]; then
    gres_line="GresTypes=${GRES%%:*}"; node_gres="Gres=$GRES"
    local k
    for k in $(seq 0 $(( ${GRES##*:} - 1 ))); do
      [ -e "$DIR/fake_dev$k" ] || mknod "$DIR/fake_dev$k" c 195 "$k"
    done
    echo "Name=${GRES%%:*} File=$DIR/fake_dev[0-$(( ${GRES##*:} - 1 ))]" >"$DIR/gres.conf"
  fi
  local acct_lines="AccountingStorageType=accounting_storage/none"
  if [ "${ACCT:-0}" = 1 ]; then
    acct_lines="AccountingStorageType=accounting_storage/slurmdbd"$'\n'"AccountingStorageHost=head"
    acct_lines+=$'\n'"AccountingStoragePass=$DIR/run/munge.sock"
    (umask 077; cat >"$DIR/slurmdbd.conf") <<EOF
DbdHost=head
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.sock
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=3306
StorageUser=root
StorageLoc=slurm_acct
PidFile=$DIR/run/slurmdbd.pid
LogFile=$DIR/log/slurmdbd.log
EOF
  fi
  for i in $(seq 1 "$n"); do
    node_lines+="NodeName=n$i NodeAddr=$SUBNET.$i CPUs=${CPUS:-2} RealMemory=${MEM_MB:-4000} $node_gres State=UNKNOWN"
    node_lines+=$'\n'
  done
  cat >"$DIR/slurm.conf" <<EOF
ClusterName=mini
SlurmctldHost=head($SUBNET.250)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$DIR/run/munge.sock,cred_expire=${CRED_EXPIRE:-5}
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
TmpFS=$DIR/tmp/%n
SlurmctldPidFile=$DIR/run/slurmctld.pid
SlurmdPidFile=$DIR/run/slurmd.%n.pid
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
JobCompType=jobcomp/filetxt
JobCompLoc=$DIR/log/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SwitchType=switch/none
MpiDefault=none
JobRequeue=1
ReturnToService=2
SlurmdTimeout=${SLURMD_TIMEOUT:-8}
SlurmctldTimeout=10
MessageTimeout=${MESSAGE_TIMEOUT:-5}
TCPTimeout=1
InactiveLimit=0
KillWait=${KILL_WAIT:-5}
UnkillableStepTimeout=20
MinJobAge=3600
SlurmdParameters=config_overrides
$gres_line
$acct_lines
$node_lines
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
${EXTRA_CONF:-}
EOF
  # No controller is used, but slurmd 22.05 loads a cgroup plugin at start all the same. Naming v1 skips the
  # detection, which quits where /sys/fs/cgroup is not mounted, hybrid or unusual.
  echo "CgroupPlugin=cgroup/v1" >"$DIR/cgroup.conf"
}

# --- runs inside the lab -------------------------------------------------------------------------
lab_boot() {              # $1 = number of nodes; this shell becomes the lab's first process (reaps orphans)
  local n=$1 i
  mount -t tmpfs tmpfs /run/netns 2>/dev/null || { mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns; }
  mount --bind "$DIR/hosts" /etc/hosts
  hostname head
  ip link set lo up
  ip link add br0 type bridge && ip link set br0 up && ip addr add "$SUBNET.250/24" dev br0
  munged --key-file="$DIR/munge.key" --socket="$DIR/run/munge.sock" --pid-file="$DIR/run/munge.pid" \
         --log-file="$DIR/log/munge.log" --seed-file="$DIR/run/munge.seed"
  if [ -f "$DIR/slurmdbd.conf" ]; then acct_boot; fi
  ctld_boot
  for i in $(seq 1 "$n"); do node_boot "n$i"; done
  echo up >"$DIR/run/booted"
  local end=$((SECONDS + ${LIFETIME:-3600}))
  while [ $SECONDS -lt $end ]; do sleep 2 & wait $! || true; done   # leaving this shell ends the whole lab
}
ctld_boot() {
  SLURM_CONF=$DIR/slurm.conf setsid slurmctld -i -D </dev/null >>"$DIR/log/slurmctld.out" 2>&1 &
  echo $! >"$DIR/run/ctld.pid"
}
acct_boot() {             # a private MariaDB without grants, reachable only inside the lab, and slurmdbd on it
  mkdir -p "$DIR/db"
  mariadbd --no-defaults --user=root --skip-grant-tables --datadir="$DIR/db" --socket="$DIR/run/db.sock" \
    --bind-address=127.0.0.1 --port=3306 --pid-file="$DIR/run/db.pid" --skip-log-bin --innodb-buffer-pool-size=64M \
    --innodb-log-file-size=16M --innodb-lock-wait-timeout=900 >"$DIR/log/db.out" 2>&1 &
  wait_port 127.0.0.1 3306
  SLURM_CONF=$DIR/slurm.conf slurmdbd -D >"$DIR/log/slurmdbd.out" 2>&1 &
  wait_port 127.0.0.1 6819
}
wait_port() {
  local i
  for i in $(seq 200); do (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null && return 0; sleep 0.05; done
  return 1
}
node_boot() {             # $1 = node name; called on the head
  local v=$1
  if [ ! -e "/run/netns/$v" ]; then
    ip netns add "$v"
    ip link add "v$v" type veth peer name eth0 netns "$v"
    ip link set "v$v" master br0 up
    ip -n "$v" link set lo up
    ip -n "$v" addr add "$(ip_of "$v")/24" dev eth0
    ip -n "$v" link set eth0 up
  fi
  ip link set "v$v" up
  mkdir -p "$DIR/spool/$v" "$DIR/tmp/$v"
  ( exec </dev/null >>"$DIR/log/node.$v.out" 2>&1
    echo "$BASHPID" >"$DIR/run/$v.pid"
    # nsenter, not "ip netns exec": the latter remounts /sys, and slurmd then finds no /sys/fs/cgroup and quits
    exec nsenter --net="/run/netns/$v" unshare --mount --uts --pid --fork --kill-child --mount-proc \
      bash -c 'set -e; hostname "$1"; mount -t tmpfs tmpfs /dev/shm
               if [ "$3" != 1 ]; then
                 mount --rbind /tmp "$2/tmp/$1"
                 mount -t tmpfs tmpfs /tmp
                 IFS=: read -ra seen <<<"$4"
                 for folder in "${seen[@]}"; do
                   mkdir -p "$folder"
                   mount --rbind "$2/tmp/$1/${folder#/tmp/}" "$folder"
                 done
                 umount -l "$2/tmp/$1"
               fi
               SLURM_CONF="$2/slurm.conf" slurmd -D -N "$1" & s=$!
               echo "$s" >"$2/run/$1.slurmd"; while :; do wait || true; sleep 1; done' \
        node "$v" "$DIR" "$SHARED_TMP" "$SEEN" ) &
}
node_init() {             # pid, as seen on the head, of a node's own process 1
  local p; p=$(cat "$DIR/run/$1.pid" 2>/dev/null) || return 1
  grep -qz "^unshare" "/proc/$p/cmdline" 2>/dev/null || return 1
  tr -d " " <"/proc/$p/task/$p/children"
}

# --- commands --------------------------------------------------------------------------------------
wait_state() {            # $1 node  $2 state prefix  $3 timeout
  local t0=$SECONDS s
  while :; do
    s=$(in_lab sinfo -h -N -n "$1" -o %T 2>/dev/null | sed -n 1p) || s=
    [[ "$s" == "$2"* ]] && return 0
    [ $((SECONDS - t0)) -lt "$3" ] || die "$1 is '$s', not '$2', after $3 s"
    sleep 0.1
  done
}
case $cmd in
  start)
    n=${1:?number of nodes}
    lab_pid >/dev/null && die "already running in $DIR"
    for b in slurmctld slurmd munged ip unshare nsenter setsid; do command -v $b >/dev/null || die "missing $b"; done
    rm -rf "$DIR/run" "$DIR/spool" "$DIR/tmp"
    [ "${KEEP_STATE:-0}" = 1 ] || rm -rf "$DIR/state" "$DIR/db" "$DIR/log" "$DIR/slurmdbd.conf" "$DIR/gres.conf"
    mkdir -p "$DIR"/{run,log,state,spool,tmp}; chmod 755 "$DIR" "$DIR/run"
    echo "$SUBNET" >"$DIR/subnet"
    case $DIR/ in
      /tmp/*) [ "$SHARED_TMP" = 1 ] || die "$DIR: nodes with a /tmp of their own would not see it (SHARED_TMP=1?)" ;;
    esac
    IFS=: read -ra seen <<<"$SEEN"
    for folder in "${seen[@]}"; do
      [[ $folder == /tmp/?* && -d $folder ]] || die "SEEN: $folder is no folder below /tmp"
    done
    echo "$SHARED_TMP" >"$DIR/shared_tmp"
    echo "$SEEN" >"$DIR/seen"
    [ -s "$DIR/munge.key" ] || (umask 077; head -c 128 /dev/urandom >"$DIR/munge.key")
    write_conf "$n"
    setsid unshare --net --mount --uts --pid --fork --kill-child --mount-proc \
      bash "$SELF" __lab "$DIR" "$n" "mini-slurm-lab:$DIR" </dev/null >"$DIR/log/lab.out" 2>&1 &
    outer=$!
    for _ in $(seq 600); do
      c=$(cat /proc/$outer/task/$outer/children 2>/dev/null | tr -d ' ') || c=
      [ -n "$c" ] && break; sleep 0.05
    done
    [ -n "${c:-}" ] || die "lab did not start: $(cat "$DIR/log/lab.out")"
    echo "$c" >"$DIR/run/lab.pid"
    for _ in $(seq 1200); do [ -e "$DIR/run/booted" ] && break; sleep 0.05; done
    [ -e "$DIR/run/booted" ] || die "lab did not boot: $(cat "$DIR/log/lab.out")"
    for i in $(seq 1 "$n"); do wait_state "n$i" idle 60; done
    ;;
  __lab) lab_boot "$1" ;;
  __node_boot) node_boot "$1" ;;
  __ctld_boot) ctld_boot ;;
  stop)
    p=$(lab_pid) || { echo "not running"; exit 0; }
    kill -9 "$p"
    for _ in $(seq 100); do lab_pid >/dev/null || break; sleep 0.05; done
    rm -f "$DIR/run/lab.pid"
    ;;
  exec) [ $# -ge 1 ] || usage; in_lab "$@" ;;
  node-exec)
    v=$1; shift
    p=$(in_lab bash "$SELF" __node_init "$DIR" "$v") || die "$v is not running"
    in_lab nsenter -t "$p" -n -m -u -p -- env -C "$PWD" SLURMD_NODENAME="$v" "$@"
    ;;
  rsh)  # an rsh agent for programs that already run on the head: mpirun --mca plm_rsh_agent "mini_slurm.sh rsh DIR"
    v=$1; shift
    p=$(node_init "$v") || die "$v is not running"
    exec nsenter -t "$p" -n -m -u -p -- sh -c "$*" ;;
  __node_init) node_init "$1" ;;
  kill-node) in_lab bash -c 'kill -9 "$(cat "$1/run/$2.pid")"' _ "$DIR" "$1" ;;
  kill-slurmd)
    p=$(in_lab bash "$SELF" __node_init "$DIR" "$1") || die "$1 is not running"
    in_lab nsenter -t "$p" -m -p -- bash -c 'kill -9 "$(cat "$1/run/$2.slurmd")"' _ "$DIR" "$1" ;;
  start-node)
    in_lab bash "$SELF" __node_init "$DIR" "$1" >/dev/null 2>&1 && die "$1 already runs"
    # Start it as a child of the lab, not of this shell: the caller may go away.
    in_lab setsid bash "$SELF" __node_boot "$DIR" "$1" </dev/null >/dev/null 2>&1 ;;
  kill-ctld)  in_lab bash -c 'kill -9 "$(cat "$1/run/ctld.pid")"' _ "$DIR" ;;
  start-ctld) in_lab bash "$SELF" __ctld_boot "$DIR" </dev/null >/dev/null 2>&1 ;;
  cut)   in_lab ip link set "v$1" down ;;
  heal)  in_lab ip link set "v$1" up ;;
  drop)  in_lab bash -c 'for h in input output; do n="nsenter --net=/run/netns/$1 nft"
           $n add table inet mini
           $n "add chain inet mini $h { type filter hook $h priority 0; policy accept; }"
           d=iif; [ $h = output ] && d=oif; $n add rule inet mini $h $d eth0 drop; done' _ "$1" ;;
  undrop) in_lab nsenter --net="/run/netns/$1" nft delete table inet mini ;;
  slow)  in_lab tc qdisc replace dev "v$1" root tbf rate "$2" burst 256kb latency 200ms
         in_lab ip netns exec "$1" tc qdisc replace dev eth0 root tbf rate "$2" burst 256kb latency 200ms ;;
  wait-state) wait_state "$1" "$2" "${3:-30}" ;;
  status) in_lab sinfo -N -o '%N %T %E'; in_lab squeue ;;
  *) usage ;;
esac
