#include "coordinator/state_folder.h"

#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "proto/base/hash.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "storage/rocks_kv.h"

namespace swax::coord {
namespace {

constexpr int64_t kHolderBytesMax = 1024;
constexpr rlim_t kDescriptorsMin = 256;

std::string this_process() {
  char host[256] = "unknown";
  // The name only; nothing resolves it.
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return "process " + to_text(int64_t{::getpid()}) + " on " + printable(host, sizeof host);
}

Result<std::string> absolute_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&::free)> real(::realpath(path.c_str(), nullptr), &::free);
  if (!real) return not_found("no folder " + printable(path, 512));
  return std::string(real.get());
}

std::string holder_path(const std::string& state) { return join_path(state, "holder"); }

Status in_use(const std::string& what, const std::string& holder_file, const std::string& option) {
  const Result<std::string> holder = read_file(holder_file, kHolderBytesMax);
  return failed_precondition(
      what + " is in use by another coordinator (" +
      (holder.ok() ? printable(*holder, kHolderBytesMax) : std::string("unknown")) +
      "): stop it first, or give another " + option);
}

Status refused(const std::string& state) {
  return in_use("state " + printable(state, 512), holder_path(state), "--state");
}

}  // namespace

Result<StateFolder> StateFolder::open(const std::string& state, const std::string& store) {
  SWAX_TRY(make_dirs(state));
  StateFolder folder;
  SWAX_ASSIGN(folder.state_, absolute_path(state));
  Result<Fd> lock = lock_file(join_path(folder.state_, "lock"));
  if (!lock.ok() && lock.status().code() == Code::kFailedPrecondition)
    return refused(folder.state_);
  if (!lock.ok()) return lock.status();
  folder.lock_ = std::move(lock).value();
  SWAX_TRY(write_atomic(holder_path(folder.state_), this_process()));
  const std::string where = store.empty() ? join_path(folder.state_, "store") : store;
  SWAX_TRY(make_dirs(where));
  SWAX_ASSIGN(folder.store_, absolute_path(where));
  SWAX_TRY(folder.take_store());
  return folder;
}

Status StateFolder::take_store() {
  const std::string holder = join_path(store_, "coordinator.holder");
  Result<Fd> lock = lock_file(join_path(store_, "coordinator.lock"));
  if (lock.status().code() == Code::kFailedPrecondition)
    return in_use("store " + printable(store_, 512), holder, "--store");
  if (lock.ok()) {
    store_lock_ = std::move(lock).value();
  } else {  // a network file system without locks
    log_warn("coordinator", "the store cannot be locked: no other coordinator may use it",
             {{"store", store_}, {"reason", lock.status().message()}});
  }
  return write_atomic(holder, this_process());
}

Result<std::unique_ptr<Kv>> StateFolder::open_kv() const {
  Result<std::unique_ptr<Kv>> kv = open_rocks_kv(join_path(state_, "kv"), KvMode::kCreate);
  // RocksDB's own lock: a process that came past ours, as on a file system without flock.
  if (!kv.ok() && kv.status().code() == Code::kUnavailable) return refused(state_);
  return kv;
}

Result<StoreNonce> write_store_nonce(const std::string& store, const std::string& cluster_id) {
  StoreNonce nonce{.file = "coordinator-" + cluster_id + ".nonce", .content = random_id()};
  SWAX_TRY(write_atomic(join_path(store, nonce.file), nonce.content));
  return nonce;
}

std::string random_id() {
  Hash128 bits;
  SWAX_CHECK(::getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits));
  return bits.hex();
}

Status check_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return internal_error("getrlimit");
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  if (limit.rlim_cur >= kDescriptorsMin) return ok();
  return resource_exhausted("open files are limited to " + to_text(uint64_t{limit.rlim_cur}) +
                            ": a coordinator needs at least " + to_text(uint64_t{kDescriptorsMin}) +
                            " (ulimit -n)");
}

}  // namespace swax::coord
