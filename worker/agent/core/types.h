// The node agent's core as plain data: events in, commands out. It decides what runs on this node; the shell around it owns processes,
// sockets and files. Durable here is only the outbox of reports and the highest epoch accepted per job (shell: one RocksDB batch).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
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
  int64_t silent_ms = 5000;             // no word from the coordinator: close the socket, open a new one
  int64_t stop_grace_ms = 60000;        // STOP_CHECKPOINT -> kill
  // Longest time without a report of a rank, by phase; `train` compares steps of equal window only: limit = max(floor, factor * the
  // slowest recent step of that window).
  int64_t launch_limit_ms = 120000, load_limit_ms = 600000, save_limit_ms = 600000, validate_limit_ms = 1200000;
  int64_t train_floor_ms = 10000;
  int64_t train_factor = 10;
  int64_t outbox_steps_max = 4096;      // step reports kept while the coordinator is away; older ones are dropped and counted
};

enum class Phase { kPreparing, kLaunching, kRunning, kStopping, kEnded };

struct RankState {
  bool connected = false;
  bool closed = false;
  std::string phase = "launching";
  int64_t heard_ms = 0;                 // last report that shows progress
  uint64_t step = 0;
  uint32_t window = 0;
  std::string failure;
};

struct Attempt {
  std::string job;
  uint64_t epoch = 0;
  pb::StartAttempt start;
  bool lead = false;
  Phase phase = Phase::kPreparing;
  int64_t since_ms = 0;
  std::map<uint32_t, RankState> ranks;  // those of this node
  std::map<uint32_t, int64_t> slowest_step_ms;  // by window, of recent steps
  int32_t first_rank = -1;              // first that closed or failed
  int64_t first_failed_ms = 0;
  bool stop_asked = false;
  bool killing = false;
  bool hang = false;
  bool done = false;                    // rank 0 reported the end
  bool stopped_on_request = false;
  std::string failure;                  // of the first rank that gave one
  int launcher_code = -1;               // wait status of mpirun, decoded; -1 running
  int launcher_signal = 0;
};

struct State {
  uint64_t coordinator_epoch = 0;
  std::string cluster_id;
  bool registered = false;
  bool draining = false;
  int64_t heard_ms = 0;                 // last word of the coordinator
  int64_t beat_ms = 0;
  uint64_t sequence = 0;
  std::string store, store_nonce;
  std::map<std::string, uint64_t> accepted;       // job -> highest epoch ever accepted: older ones are refused
  std::map<std::string, Attempt> attempts;        // by job: at most one epoch of a job at a time on a node
  uint64_t next_report = 1;
  std::map<uint64_t, pb::AttemptReport> outbox;   // by index, until acknowledged
  int64_t steps_dropped = 0;
};

// ---- events ---------------------------------------------------------------------------------------------------------------------------
struct Started {};                                         // after leftovers are swept and the outbox is read
struct Tick {};
struct FromCoordinator { pb::Envelope envelope; };
struct Prepared { std::string job; uint64_t epoch = 0; bool ok = true; std::string error; };     // data sets are there
struct RankSaid { std::string job; uint64_t epoch = 0; uint32_t rank = 0; pb::RankMessage message; };
struct RankClosed { std::string job; uint64_t epoch = 0; uint32_t rank = 0; };                  // its socket ended
struct LauncherExited { std::string job; uint64_t epoch = 0; int exit_code = 0; int signal = 0; std::string log_tail; };
struct Swept { std::string job; uint64_t epoch = 0; };     // no process of the attempt is left on this node
struct StopSignal { bool checkpoint = true; };             // SIGTERM / SIGUSR1 of the agent
struct ProxyAsks { std::string job; uint64_t epoch = 0; std::string target, command; uint64_t proxy = 0; };
struct RemoteEnded { std::string job; uint64_t epoch = 0; std::string lead; uint64_t proxy = 0; int exit_code = 0; std::string reason; };
using EventBody = std::variant<Started, Tick, FromCoordinator, Prepared, RankSaid, RankClosed, LauncherExited, Swept, StopSignal,
                               ProxyAsks, RemoteEnded>;
struct Event {
  int64_t now_ms = 0;
  int64_t wall_ms = 0;
  EventBody body;
};

// ---- commands -------------------------------------------------------------------------------------------------------------------------
struct Send { pb::Envelope envelope; };
struct Reconnect {};                                       // close the socket and open a new one, jittered
struct SaveOutbox { std::vector<pb::AttemptReport> add; uint64_t drop_through = 0; std::string job; uint64_t accepted_epoch = 0; };  // synced
struct Prepare { pb::StartAttempt start; };                // build missing data sets, make folders
struct Launch { pb::StartAttempt start; };                 // lead: mpirun
struct TellRank { std::string job; uint64_t epoch = 0; int32_t rank = -1; pb::AgentMessage message; };  // -1: all of this node
struct Kill { std::string job; uint64_t epoch = 0; };      // every process of the attempt on this node; then say Swept
struct RunRemote { pb::LaunchRemote launch; std::string lead; };   // member: start the orted
struct ProxyDone { uint64_t proxy = 0; int exit_code = 0; std::string reason; };
struct Exit { int code = 0; };                             // the agent leaves (99 after a stop with checkpoint, 0)
using Command = std::variant<Send, Reconnect, SaveOutbox, Prepare, Launch, TellRank, Kill, RunRemote, ProxyDone, Exit>;

}  // namespace swax::agent
