// Gloo contexts of one rank, created through a KeyValueStore, and what the store knows of late ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/comm/gloo_communicator.h"

namespace gloo {
class Context;
namespace transport {
class Device;
}
}  // namespace gloo

namespace trainctl::comm {

/// Ranks that are fully connected to each other.
struct GlooGroup {
  std::string name;  ///< the same on all members: part of their keys in the store
  std::vector<int> ranks;
  int index = 0;                           ///< index of this rank
  std::shared_ptr<gloo::Context> context;  ///< null until the first call
  uint32_t calls = 0;
};

class GlooLinks {
 public:
  GlooLinks(KeyValueStore& store, int rank, const GlooOptions& options);

  int rank() const { return rank_; }
  std::chrono::milliseconds timeout() const;
  double timeout_seconds() const { return options_.timeout_seconds; }
  /// Time limit for connecting the ranks of a job.
  double connect_seconds() const {
    return options_.connect_seconds > 0 ? options_.connect_seconds : options_.timeout_seconds;
  }
  GlooGroup make_group(const std::vector<int>& ranks, const std::string& name) const;
  /// Blocks until every member has called it, on behalf of `call`. CommError names those missing after `seconds`.
  void connect(GlooGroup& group, const std::string& call, double seconds);

  /// Publishes the position to the store at most once per second.
  void set_position(RankPosition position);
  RankPosition position_of(int rank) const;

  /// The error for a call of at most `seconds` that ended with `reason` (Gloo's own words). Members that are blocked in
  /// the same call report it through the store; members that do not are missing.
  CommError blocked(const GlooGroup& group, const std::string& call, const std::string& call_key,
                    const std::string& reason, double seconds) const;

 private:
  std::string key(const std::string& rest) const { return options_.prefix + "/" + rest; }
  void publish_position() const;
  void open_tls_device(const GlooGroup& group, const std::string& call, double seconds);

  KeyValueStore& store_;
  int rank_;
  GlooOptions options_;
  std::shared_ptr<gloo::transport::Device> device_;  ///< null until the ranks share a secret, if they do
  RankPosition position_;
  std::chrono::steady_clock::time_point next_publish_;
};

}  // namespace trainctl::comm
