// The node agent's core as plain data: events in, commands out. It decides what runs on this node;
// the shell around it owns processes, sockets and files. Durable here are only the outbox of
// reports, the next report number and the highest epoch accepted per job (one batch of the shell).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "proto/control.pb.h"

namespace swax::agent {

struct Config {
  std::string node, state_id, build_id, host;
  uint32_t slots = 1;
  uint32_t pid = 0;
  uint64_t incarnation = 0;
  uint64_t memory_bytes = 0;
  int64_t heartbeat_ms = 1000;
  int64_t silent_ms = 5000;       // no word from the coordinator: a new socket
  int64_t resend_ms = 2000;       // reports and proxy requests without an answer are sent again
  int64_t stop_grace_ms = 60000;  // STOP_CHECKPOINT -> kill
  int64_t kill_again_ms = 5000;   // Kill is repeated until Swept comes
  int64_t pause_ms = 1000;        // a longer gap between events was a pause of this process
  int64_t leave_ms = 10000;       // a stopping agent waits this long for its last acknowledgement
  // Longest time without a report of a rank, by phase; `train` compares steps of equal window only:
  // limit = max(floor, factor * the slowest recent step of that window).
  int64_t launch_limit_ms = 120000, load_limit_ms = 600000, save_limit_ms = 600000,
          validate_limit_ms = 1200000, leave_limit_ms = 60000;
  int64_t train_floor_ms = 60000;  // machines are loaded at times, a hang is rare
  int64_t train_factor = 10;
  uint64_t outbox_steps_max = 4096;  // step reports kept while the coordinator is away; then the
                                     // oldest are dropped and counted
  uint64_t send_bytes_max = 128 * 1024;  // of one AttemptReports; a frame holds 256 KiB
};

enum class Phase {
  kPreparing,
  kLaunching,  // handed to mpirun (lead) or ready for its daemon (member)
  kRunning,    // a rank has said hello
  kKilling,    // Kill was given, Swept has not come
  kEnded       // reported; remembered until the coordinator knows the end
};

struct RankState {
  bool connected = false;
  bool closed = false;
  std::string phase = "launching";
  int64_t heard_ms = 0;  // last report that shows progress
  bool halted = false;   // its process is stopped
  uint64_t step = 0;
  std::string failure;
  int exit_code = -1;  // -1: unknown
  int signal = 0;
};

struct Proxy {  // a launch proxy of mpirun that waits on the lead
  std::string target, command;
  int64_t sent_ms = 0;
};

struct Attempt {
  std::string job;
  uint64_t epoch = 0;
  pb::StartAttempt start;
  bool lead = false;
  Phase phase = Phase::kPreparing;
  int64_t since_ms = 0;                        // of the phase
  std::map<uint32_t, RankState> ranks;         // those of this node
  std::map<int64_t, int64_t> slowest_step_ms;  // by window, of recent steps
  int32_t first_rank = -1;                     // first that closed out of order or hung
  std::string first_phase;                     // its phase then
  // The rank that was furthest behind when the attempt was killed; none: no rank ran.
  std::optional<std::pair<uint32_t, RankState>> behind;
  std::optional<int64_t> stop_ms;  // STOP_CHECKPOINT asked at
  std::string result;              // decided by us before the processes said theirs
  std::string reason;
  bool done = false;  // rank 0 reported the end
  bool left = false;  // ... or that it leaves on request, of whatever node
  bool step_reported = false;
  int launcher_code = -1;  // of mpirun or srun; -1: still running
  int launcher_signal = 0;
  int64_t kill_ms = 0;  // newest Kill
  struct LogLoss {
    int64_t dropped = 0, told = 0;  // bytes
  };
  std::map<int64_t, LogLoss> log_loss;  // rank -> what is missing of its log; -1: launcher's
  std::map<uint64_t, Proxy> proxies;    // lead: unanswered
  std::set<uint64_t> remotes;           // member: proxies already served
  std::set<uint64_t> daemons;           // member: of those, the ones whose orted still runs
  // What must be told again to a coordinator that restarted before it was recorded: DURABLE of the
  // newest two steps, and the end.
  std::vector<pb::AttemptReport> kept;
};

struct State {
  uint64_t coordinator_epoch = 0;
  std::string cluster_id;
  bool registered = false;
  std::optional<bool> leaving;  // StopSignal came: with checkpoint or not
  int64_t leaving_ms = 0;
  int64_t heard_ms = 0;  // last word of the coordinator
  int64_t last_event_ms = 0;
  int64_t beat_ms = 0;
  int64_t hello_ms = 0;           // newest HELLO
  int64_t hello_due_ms = 0;       // when unregistered: the next one
  uint64_t reconnects = 0;        // in a row
  uint64_t sequence = 0;          // of our messages
  uint64_t control_sequence = 0;  // newest START, STOP or HEARTBEAT_REPLY of this coordinator epoch
  int64_t heartbeat_ms = 0, lost_ms = 0;  // as WELCOME says; 0: as configured
  std::string store, store_nonce;
  std::map<std::string, uint64_t>
      accepted;                             // durable: job -> highest epoch; older ones are refused
  std::map<std::string, Attempt> attempts;  // by job: at most one epoch of a job on a node
  std::map<std::string, pb::StartAttempt> waiting;  // newer epoch, until the older one is swept
  uint64_t next_report = 1;                         // durable
  std::map<uint64_t, pb::AttemptReport> outbox;     // durable; by index, until acknowledged
  uint64_t saved_through = 0, sent_through = 0;     // indexes in the outbox
  uint64_t acknowledged = 0, forgotten = 0;         // the latter: dropped from disk through here
  std::vector<uint64_t> dropped;                    // saved steps that were dropped, still on disk
  int64_t sent_ms = 0;
  std::set<uint64_t> outbox_steps;  // which of them are step reports
  uint64_t steps_dropped = 0;
};

// ---- events ----------------------------------------------------------------------------------
struct Started {};  // after leftovers are swept and the durable parts of State are filled in
struct Tick {};     // every 200 ms or so
struct FromCoordinator {
  pb::Envelope envelope;
};
struct NonceRead {  // empty: the file is not there
  std::string nonce;
};
struct Prepared {  // data sets are there
  std::string job;
  uint64_t epoch = 0;
  bool ok = true;
  bool retry = false;  // another attempt may succeed (disk full); else the spec or data is at fault
  std::string error;
};
struct RankSaid {
  std::string job;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  pb::RankMessage message;
};
struct RankClosed {  // its socket ended or its pidfd fired; give the status when it can be read
  std::string job;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  int exit_code = -1;  // -1: unknown
  int signal = 0;
};
struct RankHalted {  // somebody stopped its process (SIGSTOP, a debugger), or it goes on
  std::string job;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  bool halted = false;
};
struct LauncherExited {
  std::string job;
  uint64_t epoch = 0;
  int exit_code = 0;
  int signal = 0;
  std::string log_tail;
};
struct RankFailure {  // the reason that a failing rank left in a file
  uint32_t rank = 0;
  std::string text;
};
struct Swept {  // no process of the attempt is left on this node
  std::string job;
  uint64_t epoch = 0;
  std::vector<RankFailure> failures{};  // the lead's: of all nodes, the oldest first
};
struct LogCut {  // a log has lost its middle, so that it stays within its limit
  std::string job;
  uint64_t epoch = 0;
  int64_t rank = -1;    // -1: the launcher's
  int64_t dropped = 0;  // bytes, by now
};
struct StopSignal {  // SIGTERM / SIGUSR1 of the agent
  bool checkpoint = true;
};
struct ProxyAsks {
  std::string job;
  uint64_t epoch = 0;
  std::string target, command;
  uint64_t proxy = 0;
};
struct RemoteEnded {
  std::string job;
  uint64_t epoch = 0;
  std::string lead;
  uint64_t proxy = 0;
  int exit_code = 0;
  std::string reason;
};
using EventBody =
    std::variant<Started, Tick, FromCoordinator, NonceRead, Prepared, RankSaid, RankClosed,
                 RankHalted, LauncherExited, Swept, LogCut, StopSignal, ProxyAsks, RemoteEnded>;
struct Event {
  int64_t now_ms = 0;   // monotonic
  int64_t wall_ms = 0;  // for stamps only
  EventBody body;
};

// ---- commands, to be executed in order -------------------------------------------------------
struct Send {
  pb::Envelope envelope;
};
struct Reconnect {};  // close the socket and open a new one now; the core has done the waiting
struct SaveOutbox {   // one batch, synced when it adds or accepts something
  std::vector<pb::AttemptReport> add;
  std::vector<uint64_t> drop;  // single reports: dropped steps
  uint64_t drop_through = 0;   // and all up to here: acknowledged
  uint64_t next_report = 0;
  std::string job;  // with accepted_epoch; empty: none
  uint64_t accepted_epoch = 0;
};
struct ReadNonce {  // STORE/FILE, then say NonceRead
  std::string store, file;
};
struct Prepare {  // build missing data sets, make folders, then say Prepared
  pb::StartAttempt start;
};
struct Launch {  // lead: mpirun or srun; member: srun's ranks are expected
  pb::StartAttempt start;
};
struct TellRank {
  std::string job;
  uint64_t epoch = 0;
  int32_t rank = -1;  // -1: all of this node
  pb::AgentMessage message;
};
struct Kill {  // every process of the attempt on this node; then say Swept. May be repeated
  std::string job;
  uint64_t epoch = 0;
};
struct RunRemote {  // member: start the orted
  pb::LaunchRemote launch;
  std::string lead;
};
struct ProxyDone {
  uint64_t proxy = 0;
  int exit_code = 0;
  std::string reason;
};
struct Exit {  // the agent leaves: 99 after a stop with checkpoint, 78 refused for good, else 0
  int code = 0;
  std::string reason;
};
using Command = std::variant<Send, Reconnect, SaveOutbox, ReadNonce, Prepare, Launch, TellRank,
                             Kill, RunRemote, ProxyDone, Exit>;

}  // namespace swax::agent
