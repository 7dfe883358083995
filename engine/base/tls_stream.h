// A TCP connection in TLS 1.3 between two processes of a job. Both prove that they have the job's token, which is the
// pre-shared key of the handshake (RFC 8446, 4.2.11), with fresh Diffie-Hellman keys: recorded traffic stays unreadable
// if the token leaks later. Certificates prove nothing here: a handshake that uses one instead of the key fails on both
// sides, before either has sent a byte of the job.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct ssl_st;
struct ssl_ctx_st;

namespace trainctl {

class TlsStream {
 public:
  static constexpr double kMessageSeconds = 60;

  /// Takes the connected socket. Blocks for `seconds` at most, however slowly the other side sends. Throws EnvError if
  /// the other side does not have the token, or does not speak TLS.
  static std::unique_ptr<TlsStream> accept(int socket, const std::string& token, double seconds);
  static std::unique_ptr<TlsStream> connect(int socket, const std::string& token, double seconds);
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;
  ~TlsStream();

  // Each of these blocks for `seconds` at most, and then throws EnvError.

  void write(std::string_view bytes, double seconds = kMessageSeconds);
  /// A line without its end. Throws EnvError if the other side closes before, or after `most` bytes.
  std::string read_line(size_t most, double seconds = kMessageSeconds);
  /// Exactly `count` bytes. Throws EnvError.
  std::string read_bytes(size_t count, double seconds = kMessageSeconds);
  /// Copies from `in` to the other side, which sees its end, and from the other side to `out`. Takes ownership of
  /// `out`, and closes it when the other side has ended. Then it returns, or with `stays` when `in` has ended too.
  void copy(int in, int out, bool stays);

  // For a loop over many sockets; none of these blocks, and each throws EnvError once the connection has failed or
  // ended.

  /// Takes the connected socket; try_handshake makes the handshake, and reads `token` until it is done.
  static std::unique_ptr<TlsStream> start(int socket, const std::string& token, bool accepts);
  bool try_handshake();                      ///< returns whether the handshake is done
  size_t try_read(std::span<char> bytes);    ///< returns the number read; 0: none have arrived yet
  size_t try_write(std::string_view bytes);  ///< returns the number written; 0: there is no room yet
  /// True if the last call that could not proceed waits until the socket is writable; else until it is readable.
  bool waits_to_write() const { return waits_to_write_; }
  int socket() const { return socket_; }

  std::string own_address() const;  ///< IPv4 or IPv6, of this end

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  TlsStream(int socket, ssl_ctx_st* context, ssl_st* ssl) : socket_(socket), context_(context), ssl_(ssl) {}
  static std::unique_ptr<TlsStream> open(int socket, const std::string& token, double seconds, bool accepts);
  void require_only_waits(int result);
  void wait(Deadline deadline);
  void read_until(std::span<char> bytes, Deadline deadline);

  int socket_;
  bool waits_to_write_ = false;
  ssl_ctx_st* context_;
  ssl_st* ssl_;
};

}  // namespace trainctl
