// The rendezvous of ranks: set a key, or wait for one that another rank sets. The launcher provides an
// implementation over sockets.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace trainctl {

/// All functions may be called from any thread.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void set(const std::string& key, const std::vector<char>& bytes) = 0;
  /// Blocks until the key exists; throws EnvError if it does not within `timeout_seconds`.
  virtual std::vector<char> get(const std::string& key, double timeout_seconds) = 0;
};

/// For ranks that are threads of one process.
class InMemoryStore : public KeyValueStore {
 public:
  void set(const std::string& key, const std::vector<char>& bytes) override;
  std::vector<char> get(const std::string& key, double timeout_seconds) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<char>> items_;
};

}  // namespace trainctl
