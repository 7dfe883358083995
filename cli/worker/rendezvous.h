// Connects a rank to its peers: creates the Communicator that the job selects.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/comm/key_value_store.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/communicator.h"
#include "engine/spec/job_spec.h"
#include "launcher/store.h"

namespace trainctl {

/// Whether the job's ranks communicate over Gloo, and so need a store to find each other.
bool needs_store(const JobSpec& spec);

/// The variables that `run` puts into a rank's environment, and the rank removes again. Not in argv, which every user
/// of the host can read.
std::vector<std::pair<std::string, std::string>> store_environment(uint16_t port, const std::string& token);

/// Of a rank of a job with launch.hosts.
struct HostsLayout {
  std::vector<int> ranks;  ///< of each host: the number of its ranks, which follow each other; empty: one host
  std::string address;     ///< of this host for the others
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

 private:
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace trainctl
