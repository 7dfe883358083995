// Where the ranks of a job find each other: a key-value store in the launcher, on the loopback, for
// those who know the job's token. protocol.h has its language.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace trainctl {

/// The server. Lives on the launcher's loop: it answers while that runs.
class StoreServer {
 public:
  /// Listens on a free port of 127.0.0.1. Throws EnvError.
  StoreServer(boost::asio::io_context& loop, std::string token);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  uint16_t port() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// A rank's side. Any thread may call; each call has a connection of its own while it runs.
class StoreClient {
 public:
  StoreClient(uint16_t port, std::string token);
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient();

  /// Throws EnvError: the store is gone, or refuses us.
  void set(const std::string& key, const std::string& value);
  /// Waits for the key. Throws EnvError when it is not there in time.
  std::string get(const std::string& key, double timeout_seconds);

 private:
  std::string call(const std::string& request, double timeout_seconds);
  std::string call_once(const std::string& request, double timeout_seconds);
  void close_idle();
  int take_connection();
  int connect_and_prove();

  const uint16_t port_;
  const std::string token_;
  std::mutex mutex_;
  std::vector<int> idle_;  ///< open connections that nobody uses
};

}  // namespace trainctl
