// Gloo contexts of one rank, created through a KeyValueStore, and what the store knows of late ranks.
#include "engine/runtime/comm/gloo_links.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/open_files.h"
#include "engine/runtime/comm/peers.h"
#include "engine/runtime/comm/tls_transport.h"

namespace trainctl::comm {
namespace {

/// Gloo's interface to a store, on top of ours.
class RendezvousStore : public gloo::rendezvous::Store {
 public:
  RendezvousStore(KeyValueStore& store, std::string prefix, double timeout_seconds)
      : store_(store), prefix_(std::move(prefix)), timeout_seconds_(timeout_seconds) {}

  void set(const std::string& key, const std::vector<char>& data) override { store_.set(prefix_ + key, data); }
  std::vector<char> get(const std::string& key) override { return store_.get(prefix_ + key, timeout_seconds_); }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) store_.get(prefix_ + key, std::chrono::duration<double>(timeout).count());
  }

 private:
  KeyValueStore& store_;
  std::string prefix_;
  double timeout_seconds_;
};

std::optional<std::vector<char>> get_if_there(KeyValueStore& store, const std::string& key, double timeout_seconds) {
  try {
    return store.get(key, timeout_seconds);
  } catch (const EnvError&) {
    return std::nullopt;
  }
}

std::shared_ptr<gloo::transport::Device> make_tcp_device(const GlooOptions& options) {
  gloo::transport::tcp::attr attr;
  attr.hostname = options.hostname;
  try {
    return gloo::transport::tcp::CreateDevice(attr);
  } catch (const std::exception& error) {
    throw EnvError(fmt::format("gloo: cannot listen on host '{}': {}", options.hostname, error.what()));
  }
}

/// 32 random bytes, as hexadecimal digits.
std::string new_secret() {
  std::array<unsigned char, 32> bytes{};
  check(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
        "getrandom must return random bytes");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(seconds * 1000)));
}

}  // namespace

GlooLinks::GlooLinks(KeyValueStore& store, int rank, const GlooOptions& options)
    : store_(store), rank_(rank), options_(options), device_(options.encrypts ? nullptr : make_tcp_device(options)) {
  allow_open_files();  // every group connects all its members; beyond the limit it would hang, not fail
}

std::chrono::milliseconds GlooLinks::timeout() const { return to_milliseconds(options_.timeout_seconds); }

GlooGroup GlooLinks::make_group(const std::vector<int>& ranks, const std::string& name) const {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  check(mine != ranks.end(), "a rank may open only groups that it is in");
  GlooGroup group;
  group.name = name + format_ranks(ranks);
  group.ranks = ranks;
  group.index = static_cast<int>(mine - ranks.begin());
  return group;
}

/// Rank 0 creates the secret and publishes it in the store, which only ranks of the job can read.
void GlooLinks::open_tls_device(const GlooGroup& group, const std::string& call, double seconds) {
  std::vector<char> secret;
  try {
    if (rank_ == 0) {
      const std::string made = new_secret();
      store_.set(key("secret"), {made.begin(), made.end()});
    }
    secret = store_.get(key("secret"), seconds);
  } catch (const EnvError& error) {
    throw blocked(group, call, "secret", error.what(), seconds);
  }
  device_ = make_tls_device({.hostname = options_.hostname, .token = std::string(secret.begin(), secret.end())});
}

void GlooLinks::connect(GlooGroup& group, const std::string& call, double seconds) {
  if (!device_) open_tls_device(group, call, seconds);
  try {
    auto context = std::make_shared<gloo::rendezvous::Context>(group.index, static_cast<int>(group.ranks.size()));
    context->setTimeout(to_milliseconds(seconds));
    RendezvousStore store(store_, key("connect/" + group.name + "/"), seconds);
    std::shared_ptr<gloo::transport::Device> device = device_;
    context->connectFullMesh(store, device);
    context->setTimeout(timeout());
    group.context = context;
  } catch (const std::exception& error) {
    throw blocked(group, call, "connect", error.what(), seconds);
  }
}

void GlooLinks::set_position(RankPosition position) {
  position_ = position;
  if (options_.status != nullptr) {
    options_.status->step.store(position.step, std::memory_order_relaxed);
    options_.status->instruction.store(position.instruction, std::memory_order_relaxed);
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < next_publish_) return;
  next_publish_ = now + std::chrono::seconds(1);
  try {
    publish_position();
  } catch (const EnvError&) {
    // The position only helps to explain failures; it must not cause one.
  }
}

void GlooLinks::publish_position() const {
  std::vector<char> bytes(sizeof position_);
  std::memcpy(bytes.data(), &position_, sizeof position_);
  store_.set(key(fmt::format("position/{}", rank_)), bytes);
}

RankPosition GlooLinks::position_of(int rank) const {
  if (rank == rank_) return position_;
  RankPosition position;
  const auto bytes = get_if_there(store_, key(fmt::format("position/{}", rank)), 0);
  if (bytes && bytes->size() == sizeof position) std::memcpy(&position, bytes->data(), sizeof position);
  return position;
}

CommError GlooLinks::blocked(const GlooGroup& group, const std::string& call, const std::string& call_key,
                             const std::string& reason, double seconds) const {
  // If connecting fails, it fails on all members, which time out at about the same time.
  const double grace_seconds = std::clamp(seconds, 0.1, 1.0);
  const auto here = [&](int rank) { return key(fmt::format("blocked/{}/{}/{}", group.name, call_key, rank)); };
  const bool timed_out = reason.find("imed out") != std::string::npos || reason.find("has set '") != std::string::npos;
  const std::string event =
      timed_out ? fmt::format("timed out after {:g} s", seconds) : fmt::format("failed ({})", reason);
  std::vector<MissingRank> missing;
  try {
    publish_position();
    store_.set(here(rank_), {});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(grace_seconds);
    for (int rank : group.ranks) {
      const double left = std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count();
      if (rank == rank_ || get_if_there(store_, here(rank), std::max(left, 0.0))) continue;
      const RankPosition position = position_of(rank);
      missing.push_back({rank, where_is(position.step > 0 ? RankState::training : RankState::starting, position)});
    }
  } catch (const std::exception& error) {
    return blocked_call(call, event + " and the store does not respond (" + error.what() + ")", position_, {});
  }
  return blocked_call(call, event, position_, missing);
}

}  // namespace trainctl::comm
