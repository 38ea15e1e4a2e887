// The processes of this node's attempts: data sets and folders before, mpirun or srun (lead) or
// mpirun's daemon (member), and the end of all of them. What takes long runs in threads and is told
// as an event. Where an attempt lies:
//   <store>/jobs/J/attempts/aE   spec.pb and the reasons of failing ranks; all nodes see it
//   <store>/jobs/J/{ckpt,records,logs}
//   /tmp/swax-UID-HASH           session files and shared memory, on each node; the same path on
//   all
// Threads: one, which must live as long as the processes should (child.h).
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "worker/agent/attempt_files.h"
#include "worker/agent/child.h"
#include "worker/agent/core/types.h"
#include "worker/agent/event_queue.h"
#include "worker/agent/launch_watch.h"
#include "worker/agent/log_limit.h"

namespace swax {

// Folders of the sources' data sets, in order; builds what is missing below STORE/data and writes
// the digests into `spec`. Called in a thread. kInvalidArgument, kNotFound, kDataLoss,
// kFailedPrecondition: spec or data is at fault.
using PrepareData =
    std::function<Result<std::vector<std::string>>(pb::JobSpec* spec, const AttemptPaths& paths)>;

struct RunnerOptions {
  std::string node;
  uint32_t slots = 1;
  std::string state;            // real path
  std::string attempts_folder;  // in the state
  std::string socket_folder;    // SWAX_AGENT_DIR
  std::string mpirun, train_program, swax_program;
  bool loopback = false;  // all nodes are this machine
  int64_t log_bytes_max = kLogBytesMax;
  PrepareData prepare;
};

class AttemptRunner {
 public:
  AttemptRunner(RunnerOptions options, EventQueue& events);
  ~AttemptRunner();  // waits for its threads
  // Ends what an earlier agent of this state left. kDeadlineExceeded: something does not die.
  Status sweep_leftovers();

  void prepare(const pb::StartAttempt& start, const std::string& store);
  void launch(const pb::StartAttempt& start, const std::string& store);
  void run_remote(const agent::RunRemote& command, const std::string& store);
  void kill(const std::string& job, uint64_t epoch);
  void forget(const std::string& job, uint64_t epoch);  // after Swept
  void read_nonce(const agent::ReadNonce& command);
  void rank_came(const agent::RankSaid& hello);
  // A rank of this node has ended; when it was the last one, the launcher is not waited for long:
  // after an exit code other than 0 mpirun would sleep for its kill timeout.
  void rank_closed(const agent::RankClosed& closed, int64_t now_ms);

  void add_poll(std::vector<pollfd>* fds) const;
  void look(int64_t now_ms);  // ends of children and of ranks that nobody else sees; logs

 private:
  using Key = std::pair<std::string, uint64_t>;
  struct Remote {
    Child child;
    std::string lead;
    uint64_t proxy = 0;
  };
  struct Running {
    std::optional<Child> launcher;  // the lead's: mpirun or srun
    std::list<Remote> remotes;
    std::string launcher_log, session, attempt_folder;
    std::string srun_mark;  // SWAX_STATE of srun and of what is not yet a rank; empty: mpirun
    size_t ranks_here = 0, ranks_closed = 0;
    std::set<uint32_t> ranks_came;
    LaunchWatch launch;
    int64_t launch_ms = 0;                // newest look
    std::map<int64_t, std::string> logs;  // of ranks here by rank; -1: of the launcher
    bool alone = true;                    // all ranks are on this node
    int code = 0;                         // first exit code of a rank that is not 0
    bool disorder = false;                // a rank was killed or failed
    std::optional<int64_t> reap_ms;
    std::vector<std::shared_future<void>> ends;  // of children, which may take their time
    std::shared_ptr<std::atomic<bool>> killed;   // false: the kill is at work
  };
  struct Task {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };

  void start_task(std::function<void()> work);
  std::vector<std::string> rank_command(const Key& key, const AttemptPaths& paths, int ranks);
  Status launch_mpirun(const pb::StartAttempt& start, const std::string& store, Running* running);
  Status start_launcher(LaunchSpec launch, const AttemptPaths& paths, Running* running);
  Status seat_ranks(const pb::StartAttempt& start, const std::string& store, Running* running);
  Status launch_srun(const pb::StartAttempt& start, const std::string& store, Running* running);
  static void unseat_ranks(const Running& running);
  Result<int> sweep_srun(const std::string& job, const std::string& srun_mark, int64_t patience_ms,
                         int64_t limit_ms) const;
  void look_for_ranks(const Key& key, Running* running, int64_t now_ms) const;
  Status make_session(const Key& key, const std::string& store, Running* running) const;
  std::string note_path(const Key& key) const;
  std::vector<std::string> environment(const Key& key) const;
  void end_child(Running* running, Child child, std::function<void(int status)> tell);
  void end_launcher(const Key& key, Running* running, std::optional<int> status);
  void end_remotes(const Key& key, Running* running);
  void watch_launch(const Key& key, Running* running, int64_t now_ms);
  void limit_logs(int64_t now_ms);
  void shorten_log(const Key& key, int64_t rank, const std::string& path);  // from any thread

  const RunnerOptions options_;
  EventQueue& events_;
  std::map<Key, Running> running_;
  std::mutex data_mutex_;
  std::map<Key, std::vector<std::string>> data_;  // folders, from prepare() to launch()
  std::vector<Task> tasks_;
  std::mutex logs_mutex_;
  int64_t logs_ms_ = 0;                           // newest look at the logs
  std::shared_ptr<std::atomic<bool>> logs_done_;  // false: it is going on
};

}  // namespace swax
