// One TLS connection between two ranks, as Gloo's transport uses it: see tls_transport.h.
#pragma once

#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/tls_stream.h"

namespace trainctl::comm {

/// Memory that is sent or received; it counts what is done, for those that wait.
class TlsBuffer : public gloo::transport::UnboundBuffer {
 public:
  using gloo::transport::UnboundBuffer::UnboundBuffer;

  bool waitSend(int* rank, std::chrono::milliseconds timeout) override { return wait(sent_, rank, timeout, "send"); }
  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override { return wait(got_, rank, timeout, "recv"); }
  void abortWaitSend() override { abort(); }
  void abortWaitRecv() override { abort(); }

  // Called by links, at any time and on any thread.
  void has_sent(int rank) { add(sent_, rank); }
  void has_got(int rank) { add(got_, rank); }
  void fail(const std::string& reason);

 protected:
  virtual std::chrono::milliseconds default_timeout() const = 0;

 private:
  bool wait(std::deque<int>& done, int* rank, std::chrono::milliseconds timeout, const char* what);
  void add(std::deque<int>& done, int rank);
  void abort();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> sent_, got_;  ///< ranks
  std::string failure_;
  bool aborted_ = false;
};

/// Interface through which a link uses the loop that watches its socket.
class SocketWatcher {
 public:
  virtual ~SocketWatcher() = default;
  /// Notifies the link with this key when there is something to read, or, if it `writes`, room to write.
  virtual void watch(int socket, uint64_t key, bool writes) = 0;
};

class TlsLink {
 public:
  /// `peer`: its rank in Gloo's context.
  TlsLink(SocketWatcher& watcher, uint64_t key, int peer) : watcher_(watcher), key_(key), peer_(peer) {}

  uint64_t key() const { return key_; }
  /// Takes a connection whose handshake is done. False if it has one already, or is closed.
  bool adopt(std::unique_ptr<TlsStream> stream);
  /// Waits until it has a connection. Returns false if `timeout` was too short.
  bool wait_connected(std::chrono::milliseconds timeout);

  // Throw gloo::IoException if the link has failed. The memory must stay until the buffer is done, or was forgotten.

  void send(TlsBuffer& buffer, uint64_t slot, char* data, size_t bytes);
  void recv(TlsBuffer& buffer, uint64_t slot, char* data, size_t bytes);

  /// The socket is ready.
  void serve();
  /// Guarantees that this buffer is not accessed any more; if one of its messages is in transit, the link is closed.
  void forget(const TlsBuffer& buffer);
  void close() { end("this rank has closed the connection"); }

 private:
  enum Kind : uint64_t { kAsks = 1, kSends = 2 };
  struct Header {
    uint64_t kind = 0, slot = 0, bytes = 0;
  };
  struct Part {
    TlsBuffer* buffer = nullptr;  ///< none: a message without bytes of its own
    char* data = nullptr;
    size_t bytes = 0, done = 0;
  };
  using Waiting = std::map<uint64_t, std::deque<Part>>;  // by slot

  void end(const std::string& reason);
  template <typename Action>
  void guard(const Action& action);
  void require_open() const;
  /// The first part of a slot; false if there is none. Throws EnvError, and takes nothing, if it has another size.
  static bool take(Waiting& waiting, uint64_t slot, uint64_t bytes, Part& part);
  void put(Kind kind, uint64_t slot, const Part& part);
  void fill_record();
  void flush();
  void read_all();
  void handle_header();
  void finish_part();

  SocketWatcher& watcher_;
  const uint64_t key_;
  const int peer_;

  std::mutex mutex_;
  std::condition_variable connected_;
  std::unique_ptr<TlsStream> stream_;
  bool watches_writes_ = false;
  std::string failure_;
  Waiting sends_;  ///< sends of this rank, not asked for yet
  Waiting recvs_;  ///< receives of this rank, asked for
  Waiting asks_;   ///< requests of the peer that nothing was sent for yet
  std::deque<std::pair<Header, Part>> out_;
  std::vector<TlsBuffer*> in_record_;  ///< buffers that are sent once the record is
  std::string record_;                 ///< bytes that go next: at most one TLS record
  size_t record_put_ = 0;
  std::array<char, sizeof(Header)> header_{};
  size_t header_got_ = 0;
  Part in_;  ///< the message whose bytes are coming
  bool is_receiving_ = false;
};

}  // namespace trainctl::comm
