// The store's protocol: converts bytes to requests and back.
#include "launcher/protocol.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl::store {
namespace {

template <class Integer>
void put_integer(std::string& out, Integer value) {
  for (size_t byte = 0; byte < sizeof value; ++byte) out += static_cast<char>(value >> (8 * byte) & 0xff);
}

/// Reads an integer and removes it from the front.
template <class Integer>
std::optional<Integer> take(std::string_view& body) {
  if (body.size() < sizeof(Integer)) return std::nullopt;
  Integer value = 0;
  for (size_t byte = 0; byte < sizeof(Integer); ++byte) {
    value = static_cast<Integer>(value | static_cast<Integer>(static_cast<unsigned char>(body[byte])) << (8 * byte));
  }
  body.remove_prefix(sizeof(Integer));
  return value;
}

Mac hmac(std::string_view token, std::string_view who, const Nonce& first, const Nonce& second) {
  std::string message(who);
  message.append(first.data(), first.size()).append(second.data(), second.size());
  Mac mac{};
  unsigned int size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  const auto* done = HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()), bytes, message.size(),
                          reinterpret_cast<unsigned char*>(mac.data()), &size);
  check(done != nullptr && size == mac.size(), "HMAC-SHA256 returns 32 bytes");
  return mac;
}

}  // namespace

std::string frame(std::string_view body) {
  std::string out;
  put_integer(out, static_cast<uint32_t>(body.size()));
  return out.append(body);
}

std::string encode(const Request& request) {
  std::string body(1, static_cast<char>(request.kind));
  if (request.kind == Request::Kind::get) put_integer(body, request.timeout_ms);
  put_integer(body, static_cast<uint16_t>(request.key.size()));
  return frame(body + request.key + request.value);
}

std::string encode(const Reply& reply) { return frame((reply.found ? "V" : "E") + reply.text); }

std::optional<Request> parse_request(std::string_view body) {
  const auto kind = take<uint8_t>(body);
  if (!kind || (*kind != 'S' && *kind != 'G')) return std::nullopt;
  Request request;
  request.kind = static_cast<Request::Kind>(*kind);
  if (request.kind == Request::Kind::get) {
    const auto timeout = take<uint32_t>(body);
    if (!timeout) return std::nullopt;
    request.timeout_ms = *timeout;
  }
  const auto key_size = take<uint16_t>(body);
  if (!key_size || *key_size == 0 || *key_size > kMaxKeyBytes || *key_size > body.size()) return std::nullopt;
  request.key = body.substr(0, *key_size);
  request.value = body.substr(*key_size);
  if (request.kind == Request::Kind::get && !request.value.empty()) return std::nullopt;
  return request;
}

std::optional<Reply> parse_reply(std::string_view body) {
  if (body.empty() || (body[0] != 'V' && body[0] != 'E')) return std::nullopt;
  return Reply{body[0] == 'V', std::string(body.substr(1))};
}

uint32_t parse_size(std::span<const char, 4> bytes) {
  std::string_view view(bytes.data(), bytes.size());
  return *take<uint32_t>(view);
}

Nonce random_nonce() {
  Nonce nonce{};
  size_t filled = 0;
  while (filled < nonce.size()) {
    const ssize_t got = getrandom(nonce.data() + filled, nonce.size() - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw EnvError(std::string("cannot get random numbers from the kernel: ") + std::strerror(errno));
    filled += static_cast<size_t>(got);
  }
  return nonce;
}

std::string random_token() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string token;
  for (const char byte : random_nonce()) {
    token += kDigits[static_cast<unsigned char>(byte) >> 4];
    token += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return token;
}

Mac client_mac(std::string_view token, const Nonce& server_nonce, const Nonce& client_nonce) {
  return hmac(token, "client", server_nonce, client_nonce);
}

Mac server_mac(std::string_view token, const Nonce& server_nonce, const Nonce& client_nonce) {
  return hmac(token, "server", client_nonce, server_nonce);
}

bool same(const Mac& a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace trainctl::store
