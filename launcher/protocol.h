// The store's protocol, over TCP. Little-endian; a string extends to the end of its frame.
//
//   connection := hello proof welcome (request reply)*
//   hello      := frame(server_nonce[32])                                     server -> client
//   proof      := frame(client_nonce[32] hmac(token, "client" server_nonce client_nonce)[32])
//   welcome    := frame(hmac(token, "server" client_nonce server_nonce)[32])  unauthenticated peers are disconnected
//   request    := frame('S' key_size:u16 key value)                           set
//               | frame('G' timeout_ms:u32 key_size:u16 key)                  get; waits for the key
//   reply      := frame('V' value) | frame('E' message)                       'V' "" is the reply to a set
//   frame(x)   := size:u32 x          size <= kMaxHandshakeBytes before welcome, kMaxFrameBytes after
//
// hmac is HMAC-SHA256. The store reveals nothing before the proof; both sides prove that they know the token, and
// neither sends it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace trainctl::store {

inline constexpr uint32_t kMaxHandshakeBytes = 64;
inline constexpr uint32_t kMaxFrameBytes = 1 << 20;
inline constexpr size_t kMaxKeyBytes = 1024;

using Nonce = std::array<char, 32>;
using Mac = std::array<char, 32>;

struct Request {
  enum class Kind : char { set = 'S', get = 'G' } kind = Kind::get;
  std::string key;
  std::string value;        ///< set
  uint32_t timeout_ms = 0;  ///< get
};

struct Reply {
  bool found = false;  ///< 'V'
  std::string text;    ///< the value or the message
};

/// Encoded with the frame's size in front.
std::string encode(const Request& request);
std::string encode(const Reply& reply);
std::string frame(std::string_view body);

/// Parse a frame's body; nullopt if it does not follow the grammar.
std::optional<Request> parse_request(std::string_view body);
std::optional<Reply> parse_reply(std::string_view body);
uint32_t parse_size(std::span<const char, 4> bytes);

/// Takes the bytes from the kernel's generator. Throws EnvError.
Nonce random_nonce();
/// 64 hexadecimal digits.
std::string random_token();

Mac client_mac(std::string_view token, const Nonce& server_nonce, const Nonce& client_nonce);
Mac server_mac(std::string_view token, const Nonce& server_nonce, const Nonce& client_nonce);
/// Compares in constant time.
bool same(const Mac& a, std::string_view b);

}  // namespace trainctl::store
