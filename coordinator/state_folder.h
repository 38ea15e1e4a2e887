// The coordinator's folders: STATE and the store that all nodes see, one process at a time each.
//   STATE/lock, STORE/coordinator.lock       flock of the coordinator that runs
//   STATE/holder, STORE/coordinator.holder   who that is, for the message that refuses a second one
//   STATE/kv                                 the journal (RocksDB)
//   STORE/coordinator-CLUSTER.nonce   workers prove by its content that they see this store
// Threads: one; the lock is held while the object lives.
#pragma once

#include <memory>
#include <string>

#include "proto/base/files.h"
#include "proto/base/status.h"
#include "storage/kv.h"

namespace swax::coord {

class StateFolder {
 public:
  // Makes what is missing; store empty: STATE/store. kFailedPrecondition, with process and host of
  // the holder, when another coordinator runs there: jobs of two would take each other's folders.
  static Result<StateFolder> open(const std::string& state, const std::string& store);
  const std::string& state() const { return state_; }  // absolute
  const std::string& store() const { return store_; }  // absolute
  Result<std::unique_ptr<Kv>> open_kv() const;

 private:
  Status take_store();

  std::string state_, store_;
  Fd lock_, store_lock_;
};

struct StoreNonce {
  std::string file;     // relative to the store
  std::string content;  // 32 hex digits, new at each start
};
Result<StoreNonce> write_store_nonce(const std::string& store, const std::string& cluster_id);

// 32 hex digits from the kernel. Only for names and nonces, never for anything that is computed.
std::string random_id();

// Raises the soft limit of descriptors to the hard one. kResourceExhausted when that is not enough
// for a coordinator: libzmq ends the process when it meets the limit.
Status check_descriptor_limit();

}  // namespace swax::coord
