#include "coordinator/server.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "coordinator/checkpoint_files.h"
#include "coordinator/core_loop.h"
#include "coordinator/journal.h"
#include "coordinator/mailbox.h"
#include "coordinator/socket_loop.h"
#include "coordinator/state_folder.h"
#include "proto/base/log.h"

namespace swax::coord {
namespace {

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(StateFolder folder) : folder_(std::move(folder)) {}
  ~ServerImpl() override {
    request_stop();
    if (thread_.joinable()) thread_.join();
  }

  Status start(const ServerOptions& options);
  const std::string& address() const override { return address_; }
  bool stop(int64_t timeout_ms) override;

 private:
  void request_stop();
  void run();

  const StateFolder folder_;  // its lock is the last to go
  Inbox inbox_;
  Outgoing outgoing_;
  std::unique_ptr<CoreLoop> core_;
  std::unique_ptr<SocketLoop> socket_;
  std::unique_ptr<CheckpointFiles> files_;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = true;
  std::thread thread_;
};

Status ServerImpl::start(const ServerOptions& options) {
  SWAX_ASSIGN(std::unique_ptr<Kv> kv, folder_.open_kv());
  SWAX_ASSIGN(std::unique_ptr<Journal> journal, Journal::open(std::move(kv)));
  State state;
  SWAX_TRY(journal->recover(&state.durable));
  SWAX_ASSIGN(const StoreNonce nonce, write_store_nonce(folder_.store(), journal->cluster_id()));
  Config config = options.timing;
  config.cluster_id = journal->cluster_id();
  config.store = folder_.store();
  config.store_nonce = nonce.content;
  config.store_nonce_file = nonce.file;
  const uint64_t epoch = journal->epoch();
  const size_t jobs = state.durable.jobs.size(), held = state.durable.held.size();

  const std::string cluster_id = config.cluster_id;
  core_ = std::make_unique<CoreLoop>(
      CoreLoop::Options{.config = config, .state_folder = folder_.state()}, std::move(state),
      std::move(journal), inbox_, outgoing_);
  socket_ = std::make_unique<SocketLoop>(
      SocketOptions{
          .listen = options.listen, .insecure = options.insecure, .cluster_id = cluster_id},
      inbox_, outgoing_, [core = core_.get()] { return core->busy_ms(); });
  files_ = std::make_unique<CheckpointFiles>(
      folder_.store(), [this](EventBody event) { inbox_.push_done(std::move(event)); });
  core_->attach(*socket_, *files_);
  SWAX_ASSIGN(address_, socket_->start());
  ended_ = false;
  thread_ = std::thread([this] { run(); });
  log_info("coordinator", "serving",
           {{"address", address_}, {"epoch", epoch}, {"jobs", jobs}, {"held", held}});
  return ok();
}

// The core thread; it also ends the others, so that one deadline holds for all.
void ServerImpl::run() {
  core_->run();
  files_.reset();
  socket_.reset();
  const std::scoped_lock lock(mutex_);
  ended_ = true;
  ended_changed_.notify_all();
}

void ServerImpl::request_stop() {
  inbox_.stop();
  outgoing_.stop();
}

bool ServerImpl::stop(int64_t timeout_ms) {
  request_stop();
  std::unique_lock lock(mutex_);
  return ended_changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                 [&] { return ended_; });
}

}  // namespace

Result<std::unique_ptr<Server>> Server::open(const ServerOptions& options) {
  SWAX_TRY(check_descriptor_limit());
  SWAX_ASSIGN(StateFolder folder, StateFolder::open(options.state, options.store));
  auto server = std::make_unique<ServerImpl>(std::move(folder));
  SWAX_TRY(server->start(options));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace swax::coord
