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

class Rendezvous {
 public:
  /// launch.comm: shm or gloo; auto is shm, since all ranks are on one host. Throws EnvError.
  Rendezvous(const JobSpec& spec, std::shared_ptr<SharedMemory> memory, int rank);
  ~Rendezvous();

  Communicator& communicator() { return *communicator_; }

 private:
  std::unique_ptr<KeyValueStore> store_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace trainctl
