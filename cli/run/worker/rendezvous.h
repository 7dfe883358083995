// Connects a rank to its peers: creates the Communicator that the job selects.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/report/host_traffic.h"
#include "engine/runtime/comm/key_value_store.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/communicator.h"
#include "engine/spec/job_spec.h"
#include "launcher/spawn.h"
#include "launcher/store.h"

namespace trainctl {

/// Returns whether the job's ranks communicate over Gloo, and so need a store to find each other.
bool needs_store(const JobSpec& spec);

/// Passes the store's port and token to ranks in memory that they inherit and that no other process can open. argv and
/// the environment are unsuitable for the token: other users can read argv, and a rank's child processes inherit the
/// environment.
class StoreAccess {
 public:
  /// Throws EnvError.
  StoreAccess(uint16_t port, const std::string& token);
  StoreAccess(const StoreAccess&) = delete;
  StoreAccess& operator=(const StoreAccess&) = delete;
  ~StoreAccess();
  void add_to(ProcessCommand& command) const;

 private:
  int fd_ = -1;
};

/// Describes how the ranks of a job with launch.hosts are distributed. Each rank receives it.
struct HostsLayout {
  std::vector<int> ranks;  ///< number of ranks per host, numbered consecutively; empty: one host
  std::string address;     ///< address at which the other hosts reach this one
};
/// "2,4" -> {2, 4}. Throws EnvError.
std::vector<int> parse_layout(const std::string& text);

class Rendezvous {
 public:
  /// launch.comm: shm or gloo; auto is shm on one host, and shm within each of several hosts with Gloo between them.
  /// Throws EnvError.
  Rendezvous(const JobSpec& spec, std::shared_ptr<SharedMemory> memory, int rank, const HostsLayout& hosts = {});
  ~Rendezvous();

  Communicator& communicator() { return *communicator_; }
  /// The traffic so far that this rank counts; nullopt: it is not counted, because there is only one host, or because
  /// launch.comm is gloo, which does not distinguish hosts.
  std::optional<HostTraffic> traffic() const;
  /// The bytes of tokens so far that ranks have sent to experts and back, of the groups whose first rank this one is;
  /// nullopt: there are no experts.
  std::optional<int64_t> token_bytes() const;

 private:
  void count_tokens(const JobSpec& spec);

  bool counts_ = false, counts_tokens_ = false;
  std::atomic<int64_t> within_ = 0, between_ = 0, token_bytes_ = 0;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace trainctl
