// A key-value store in the launcher, through which the ranks of a job find each other. It listens on the loopback
// interface and serves only clients that know the job's token. protocol.h has its wire format.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace trainctl {

/// The server. Runs on the launcher's event loop.
class StoreServer {
 public:
  using OnSet = std::function<void(const std::string& key, const std::string& value)>;

  /// Listens on a free port of 127.0.0.1. `on_set`: a client has set a key. Throws EnvError.
  StoreServer(boost::asio::io_context& loop, std::string token, OnSet on_set = {});
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  uint16_t port() const;
  /// Sets a key that was set in the store of another host; on_set is not called. False: the store is full.
  bool put(const std::string& key, std::string value);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// A rank's side. Thread-safe; each call in progress uses a separate connection.
class StoreClient {
 public:
  StoreClient(uint16_t port, std::string token);
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient();

  /// Throws EnvError if the store cannot be reached or refuses the connection.
  void set(const std::string& key, const std::string& value);
  /// Waits for the key. Throws EnvError if it is not set in time.
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
  std::vector<int> idle_;  ///< open connections not in use
};

}  // namespace trainctl
