// A TCP connection in TLS 1.3 between two processes of a job.
#include "engine/base/tls_stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr const char* kIdentity = "trainctl";
constexpr size_t kReadAheadBytes = size_t{128} << 10;

std::chrono::steady_clock::time_point after(double seconds) {
  const auto wait = std::chrono::duration<double>(seconds);
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait);
}

/// The token of a context, as a key of 32 bytes: SHA-256 of it.
int token_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

unsigned put_key(SSL* ssl, unsigned char* key, unsigned most) {
  const auto* token = static_cast<const std::string*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), token_index()));
  if (most < SHA256_DIGEST_LENGTH) return 0;
  SHA256(reinterpret_cast<const unsigned char*>(token->data()), token->size(), key);
  return SHA256_DIGEST_LENGTH;
}

unsigned client_key(SSL* ssl, const char*, char* identity, unsigned identity_most, unsigned char* key, unsigned most) {
  if (identity_most <= std::strlen(kIdentity)) return 0;
  std::strcpy(identity, kIdentity);
  return put_key(ssl, key, most);
}

unsigned server_key(SSL* ssl, const char* identity, unsigned char* key, unsigned most) {
  return std::strcmp(identity, kIdentity) == 0 ? put_key(ssl, key, most) : 0;
}

/// A server without the key may offer a certificate instead, and OpenSSL's clients would continue with it.
int refuse_certificate(X509_STORE_CTX* store, void*) {
  X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
  return 0;
}

/// The first thing that OpenSSL has to say.
std::string reason() {
  const unsigned long code = ERR_get_error();
  const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return text == nullptr ? "the connection was closed" : text;
}

SSL_CTX* new_context(const std::string& token, bool accepts) {
  SSL_CTX* context = SSL_CTX_new(accepts ? TLS_server_method() : TLS_client_method());
  check(context != nullptr, "OpenSSL must create a context");
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");  // the digest of such keys is SHA-256
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_read_ahead(context, 1);  // several records by one call of the kernel, not two calls for each
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  SSL_CTX_set_ex_data(context, token_index(), const_cast<std::string*>(&token));
  if (accepts) {
    SSL_CTX_set_psk_server_callback(context, server_key);
  } else {
    SSL_CTX_set_psk_client_callback(context, client_key);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_cert_verify_callback(context, refuse_certificate, nullptr);
  }
  return context;
}

}  // namespace

std::unique_ptr<TlsStream> TlsStream::accept(int socket, const std::string& token, double seconds) {
  return open(socket, token, seconds, true);
}

std::unique_ptr<TlsStream> TlsStream::connect(int socket, const std::string& token, double seconds) {
  return open(socket, token, seconds, false);
}

std::unique_ptr<TlsStream> TlsStream::open(int socket, const std::string& token, double seconds, bool accepts) {
  std::unique_ptr<TlsStream> stream = start(socket, token, accepts);
  const Deadline deadline = after(seconds);
  while (!stream->try_handshake()) stream->wait(deadline);
  return stream;
}

std::unique_ptr<TlsStream> TlsStream::start(int socket, const std::string& token, bool accepts) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  SSL_CTX* context = new_context(token, accepts);
  SSL* ssl = SSL_new(context);
  SSL_set_fd(ssl, socket);
  if (accepts) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
  }
  return std::unique_ptr<TlsStream>(new TlsStream(socket, context, ssl));
}

TlsStream::~TlsStream() {
  SSL_shutdown(ssl_);
  SSL_free(ssl_);
  SSL_CTX_free(context_);
  ::close(socket_);
}

/// An operation has returned `result`, and would have to wait. Throws EnvError if it has failed.
void TlsStream::require_only_waits(int result) {
  const int error = SSL_get_error(ssl_, result);
  if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) throw EnvError(reason());
  waits_to_write_ = error == SSL_ERROR_WANT_WRITE;
}

bool TlsStream::try_handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result != 1) {
    require_only_waits(result);
    return false;
  }
  // In TLS 1.3 a handshake by a pre-shared key is a resumption, and one without is not.
  if (SSL_session_reused(ssl_) != 1) throw EnvError("the peer does not have the token of this job");
  return true;
}

size_t TlsStream::try_read(std::span<char> bytes) {
  ERR_clear_error();
  const int got = SSL_read(ssl_, bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20)));
  if (got > 0) return static_cast<size_t>(got);
  require_only_waits(got);
  return 0;
}

size_t TlsStream::try_write(std::string_view bytes) {
  ERR_clear_error();
  const int put = SSL_write(ssl_, bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20)));
  if (put > 0) return static_cast<size_t>(put);
  require_only_waits(put);
  return 0;
}

/// Waits until the last operation can continue. Throws EnvError at the deadline.
void TlsStream::wait(Deadline deadline) {
  pollfd ready{socket_, static_cast<short>(waits_to_write_ ? POLLOUT : POLLIN), 0};
  // The deadline applies to the whole message: a peer does not gain time by sending a byte now and then.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) == 0) throw EnvError("the peer did not respond in time");
}

void TlsStream::write(std::string_view bytes, double seconds) {
  const Deadline deadline = after(seconds);
  while (!bytes.empty()) {
    const size_t put = try_write(bytes);
    bytes.remove_prefix(put);
    if (put == 0) wait(deadline);
  }
}

void TlsStream::read_until(std::span<char> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const size_t got = try_read(bytes);
    bytes = bytes.subspan(got);
    if (got == 0) wait(deadline);
  }
}

std::string TlsStream::read_bytes(size_t count, double seconds) {
  std::string bytes(count, '\0');
  read_until(bytes, after(seconds));
  return bytes;
}

std::string TlsStream::read_line(size_t most, double seconds) {
  const Deadline deadline = after(seconds);
  std::string line;
  for (;;) {
    char next = 0;
    read_until({&next, 1}, deadline);
    if (next == '\n') return line;
    line += next;
    if (line.size() > most) throw EnvError("received a line that is too long");
  }
}

/// Neither direction waits for the other: the program at an end may write before it has read.
void TlsStream::copy(int in, int out, bool stays) {
  fcntl(out, F_SETFL, fcntl(out, F_GETFL) | O_NONBLOCK);
  std::array<char, 1 << 16> buffer{};
  std::string to_out, to_net;
  bool in_ended = false, net_ended = false, told_end = false;
  while (out >= 0 || (stays && (!in_ended || !to_net.empty()))) {
    bool moved = false;
    if (out >= 0 && to_out.empty() && !net_ended) {
      ERR_clear_error();
      const int got = SSL_read(ssl_, buffer.data(), buffer.size());
      if (got > 0) to_out.assign(buffer.data(), static_cast<size_t>(got));
      const int error = got > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_, got);
      net_ended = got <= 0 && error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
      moved = got > 0 || net_ended;
    }
    if (!to_out.empty()) {
      const ssize_t put = ::write(out, to_out.data(), to_out.size());
      if (put > 0) to_out.erase(0, static_cast<size_t>(put));
      moved = moved || put > 0;
      if (put < 0 && errno != EAGAIN && errno != EINTR) {
        to_out.clear();
        net_ended = true;  // further data has no reader
      }
    }
    if (out >= 0 && net_ended && to_out.empty()) {
      ::close(std::exchange(out, -1));
      moved = true;
    }
    if (!to_net.empty()) {
      ERR_clear_error();
      const int put = SSL_write(ssl_, to_net.data(), static_cast<int>(to_net.size()));
      if (put > 0) to_net.erase(0, static_cast<size_t>(put));
      const int error = put > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_, put);
      if (put <= 0 && error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return;
      moved = moved || put > 0;
    }
    if (in_ended && to_net.empty() && !std::exchange(told_end, true)) SSL_shutdown(ssl_);  // of our direction alone
    if (moved) continue;
    const short of_socket =
        static_cast<short>((to_out.empty() && !net_ended ? POLLIN : 0) | (to_net.empty() ? 0 : POLLOUT));
    std::array<pollfd, 3> ready{{{of_socket == 0 ? -1 : socket_, of_socket, 0},
                                 {in_ended || !to_net.empty() ? -1 : in, POLLIN, 0},
                                 {to_out.empty() ? -1 : out, POLLOUT, 0}}};
    if (poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) return;
    if (ready[1].revents == 0) continue;
    const ssize_t taken = read(in, buffer.data(), buffer.size());
    if (taken < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    in_ended = taken <= 0;
    if (taken > 0) to_net.assign(buffer.data(), static_cast<size_t>(taken));
  }
}

std::string TlsStream::own_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  if (address.ss_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof text);
  const std::string found = text;
  return found.starts_with("::ffff:") ? found.substr(7) : found;
}

}  // namespace trainctl
