// Shared memory, or Gloo by way of the launcher's store.
#include "cli/worker/rendezvous.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "engine/base/error.h"
#include "engine/runtime/comm/gloo_communicator.h"
#include "engine/runtime/comm/hosts_communicator.h"
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
std::shared_ptr<KeyValueStore> store_of_environment() {
  const char* port = std::getenv(kPortVariable);
  const char* token = std::getenv(kTokenVariable);
  if (port == nullptr || token == nullptr) throw EnvError("a worker over Gloo needs the store of trainctl run");
  auto store = std::make_shared<LauncherStore>(static_cast<uint16_t>(std::atoi(port)), token);
  unsetenv(kTokenVariable);
  return store;
}

}  // namespace

bool needs_store(const JobSpec& spec) { return spec.launch.comm == "gloo"; }

std::vector<std::pair<std::string, std::string>> store_environment(uint16_t port, const std::string& token) {
  return {{kPortVariable, std::to_string(port)}, {kTokenVariable, token}};
}

std::vector<int> parse_layout(const std::string& text) {
  std::vector<int> ranks;
  std::string_view left = text;
  while (!left.empty()) {
    int count = 0;
    const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), count);
    if (error != std::errc{} || count < 1) throw EnvError("'" + text + "' is no list of ranks a host");
    left.remove_prefix(static_cast<size_t>(end - left.data()));
    if (!left.empty() && left.front() != ',') throw EnvError("'" + text + "' is no list of ranks a host");
    if (!left.empty()) left.remove_prefix(1);
    ranks.push_back(count);
  }
  return ranks;
}

Rendezvous::Rendezvous(const JobSpec& spec, std::shared_ptr<SharedMemory> memory, int rank, const HostsLayout& hosts) {
  if (!needs_store(spec) && hosts.ranks.empty()) {
    // A worker on its own may wait until another that stands still is killed, after launch.timeout.
    const double patience = spec.launch.timeout_seconds * (spec.is_asynchronous() ? 2 : 1);
    communicator_ = make_shared_memory_communicator(std::move(memory), rank, patience,
                                                    spec.is_asynchronous() ? spec.launch.ranks : 0);
    return;
  }
  RankStatus& status = memory->status(rank);
  status.state = RankState::connecting;
  memory->use(store_of_environment());
  GlooOptions options;
  options.timeout_seconds = spec.launch.timeout_seconds;
  options.status = &status;
  if (!hosts.address.empty()) options.hostname = hosts.address;
  auto between = make_gloo_communicator(memory->values(), rank, spec.processes(), options);
  if (needs_store(spec)) {
    communicator_ = std::move(between);
    return;
  }
  std::vector<int> host_of;
  for (size_t host = 0; host < hosts.ranks.size(); ++host)
    host_of.insert(host_of.end(), static_cast<size_t>(hosts.ranks[host]), static_cast<int>(host));
  auto within = make_shared_memory_communicator(std::move(memory), rank, spec.launch.timeout_seconds);
  communicator_ = make_hosts_communicator(std::move(within), std::move(between), std::move(host_of));
}

Rendezvous::~Rendezvous() = default;

}  // namespace trainctl
