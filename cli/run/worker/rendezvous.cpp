// Connects ranks through shared memory, or through Gloo by means of the launcher's store.
#include "cli/run/worker/rendezvous.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "engine/base/error.h"
#include "engine/runtime/comm/counted_communicator.h"
#include "engine/runtime/comm/gloo_communicator.h"
#include "engine/runtime/comm/hosts_communicator.h"
#include "engine/runtime/comm/shared_memory_communicator.h"

namespace trainctl {
namespace {

/// Environment variable with the number of the descriptor that StoreAccess passes on.
constexpr const char* kStoreVariable = "TRAINCTL_STORE_FD";

/// Adapts the launcher's store to the engine's interface.
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

/// Closes the descriptor, so that this rank's child processes do not inherit it.
std::shared_ptr<KeyValueStore> store_of_environment() {
  const char* number = std::getenv(kStoreVariable);
  if (number == nullptr)
    throw EnvError("workers that use Gloo must be started by trainctl run, which provides their store");
  const int fd = std::atoi(number);
  std::array<char, 256> text{};
  const ssize_t got = pread(fd, text.data(), text.size() - 1, 0);
  close(fd);
  unsetenv(kStoreVariable);
  char* token = nullptr;
  const long port = std::strtol(text.data(), &token, 10);
  if (got <= 0 || port <= 0 || port > 65535 || *token != ' ')
    throw EnvError("cannot read the address of the store of trainctl run");
  return std::make_shared<LauncherStore>(static_cast<uint16_t>(port), token + 1);
}

}  // namespace

bool needs_store(const JobSpec& spec) { return spec.launch.comm == "gloo"; }

StoreAccess::StoreAccess(uint16_t port, const std::string& token) : fd_(memfd_create("trainctl-store", MFD_CLOEXEC)) {
  const std::string text = std::to_string(port) + " " + token;
  const bool is_written = fd_ >= 0 && pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (is_written) return;
  const std::string fault = std::strerror(errno);
  if (fd_ >= 0) close(fd_);
  throw EnvError("cannot allocate memory for the token of the store: " + fault);
}

StoreAccess::~StoreAccess() { close(fd_); }

void StoreAccess::add_to(ProcessCommand& command) const {
  command.environment.emplace_back(kStoreVariable, std::to_string(fd_));
  command.inherited_fds.push_back(fd_);
}

std::vector<int> parse_layout(const std::string& text) {
  std::vector<int> ranks;
  std::string_view left = text;
  while (!left.empty()) {
    int count = 0;
    const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), count);
    if (error != std::errc{} || count < 1) throw EnvError("'" + text + "' is not a list of ranks per host");
    left.remove_prefix(static_cast<size_t>(end - left.data()));
    if (!left.empty() && left.front() != ',') throw EnvError("'" + text + "' is not a list of ranks per host");
    if (!left.empty()) left.remove_prefix(1);
    ranks.push_back(count);
  }
  return ranks;
}

namespace {

bool has_experts(const JobSpec& spec) {
  return spec.launch.ranks > 1 && std::any_of(spec.network.begin(), spec.network.end(),
                                              [](const LayerSpec& layer) { return layer.attrs.has("experts"); });
}

}  // namespace

Rendezvous::Rendezvous(const JobSpec& spec, std::shared_ptr<SharedMemory> memory, int rank, const HostsLayout& hosts) {
  if (!needs_store(spec) && hosts.ranks.empty()) {
    // An asynchronous worker may wait until a stalled worker is killed, after launch.timeout.
    const double patience = spec.launch.timeout_seconds * (spec.is_asynchronous() ? 2 : 1);
    communicator_ = make_shared_memory_communicator(std::move(memory), rank, patience,
                                                    spec.is_asynchronous() ? spec.launch.ranks : 0);
    count_tokens(spec);
    return;
  }
  RankStatus& status = memory->status(rank);
  status.state = RankState::connecting;
  memory->use(store_of_environment());
  GlooOptions options;
  options.timeout_seconds = spec.launch.timeout_seconds;
  options.status = &status;
  options.encrypts = spec.launch.tls && !hosts.ranks.empty();
  if (!hosts.address.empty()) options.hostname = hosts.address;
  auto between = make_gloo_communicator(memory->values(), rank, spec.processes(), options);
  if (needs_store(spec)) {
    communicator_ = std::move(between);
    count_tokens(spec);
    return;
  }
  std::vector<int> host_of;
  for (size_t host = 0; host < hosts.ranks.size(); ++host)
    host_of.insert(host_of.end(), static_cast<size_t>(hosts.ranks[host]), static_cast<int>(host));
  auto within = make_shared_memory_communicator(std::move(memory), rank, spec.launch.timeout_seconds);
  counts_ = true;
  communicator_ = make_hosts_communicator(make_counted_communicator(std::move(within), within_),
                                          make_counted_communicator(std::move(between), between_), std::move(host_of));
  count_tokens(spec);
}

void Rendezvous::count_tokens(const JobSpec& spec) {
  counts_tokens_ = has_experts(spec);
  if (counts_tokens_) communicator_ = make_row_counting_communicator(std::move(communicator_), token_bytes_);
}

std::optional<int64_t> Rendezvous::token_bytes() const {
  return counts_tokens_ ? std::optional(token_bytes_.load()) : std::nullopt;
}

std::optional<HostTraffic> Rendezvous::traffic() const {
  return counts_ ? std::optional(HostTraffic{within_, between_}) : std::nullopt;
}

Rendezvous::~Rendezvous() = default;

}  // namespace trainctl
