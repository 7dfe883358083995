// Shared memory, or Gloo by way of the launcher's store.
#include "cli/worker/rendezvous.h"

#include <cstdlib>

#include "engine/base/error.h"
#include "engine/runtime/comm/gloo_communicator.h"
#include "engine/runtime/comm/shared_memory_communicator.h"

namespace trainctl {
namespace {

constexpr const char* kPortVariable = "TRAINCTL_STORE_PORT";
constexpr const char* kTokenVariable = "TRAINCTL_STORE_TOKEN";

/// The launcher's store as the engine sees it.
class LauncherStore : public KeyValueStore {
 public:
  LauncherStore(uint16_t port, std::string token) : client_(port, std::move(token)) {}
  void set(const std::string& key, const std::vector<char>& bytes) override {
    client_.set(key, std::string(bytes.begin(), bytes.end()));
  }
  std::vector<char> get(const std::string& key, double timeout_seconds) override {
    const std::string value = client_.get(key, timeout_seconds);
    return {value.begin(), value.end()};
  }

 private:
  StoreClient client_;
};

/// Removes the variables from the environment, so that this rank's child processes do not inherit the token.
std::unique_ptr<KeyValueStore> store_of_environment() {
  const char* port = std::getenv(kPortVariable);
  const char* token = std::getenv(kTokenVariable);
  if (port == nullptr || token == nullptr) throw EnvError("a worker over Gloo needs the store of trainctl run");
  auto store = std::make_unique<LauncherStore>(static_cast<uint16_t>(std::atoi(port)), token);
  unsetenv(kTokenVariable);
  return store;
}

}  // namespace

bool needs_store(const JobSpec& spec) { return spec.launch.comm == "gloo"; }

std::vector<std::pair<std::string, std::string>> store_environment(uint16_t port, const std::string& token) {
  return {{kPortVariable, std::to_string(port)}, {kTokenVariable, token}};
}

Rendezvous::Rendezvous(const JobSpec& spec, std::shared_ptr<SharedMemory> memory, int rank) {
  if (!needs_store(spec)) {
    // A worker on its own may wait until another that stands still is killed, after launch.timeout.
    const double patience = spec.launch.timeout_seconds * (spec.is_asynchronous() ? 2 : 1);
    communicator_ = make_shared_memory_communicator(std::move(memory), rank, patience,
                                                    spec.is_asynchronous() ? spec.launch.ranks : 0);
    return;
  }
  RankStatus& status = memory->status(rank);
  status.state = RankState::connecting;
  store_ = store_of_environment();
  GlooOptions options;
  options.timeout_seconds = spec.launch.timeout_seconds;
  options.status = &status;
  communicator_ = make_gloo_communicator(*store_, rank, spec.processes(), options);
}

Rendezvous::~Rendezvous() = default;

}  // namespace trainctl
