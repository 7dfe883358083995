// Files of tokens, as nanoGPT, llm.c and Megatron (tables/megatron.h) write them. Numbers are little-endian.
//
//   file   := header? token*
//   header := magic version count int32{253}      256 int32, of llm.c; nanoGPT's files have none
//
//   magic     version   token
//   20240520  1         uint16   GPT-2
//   20240801  7         uint32   Llama 3
//
// The readers take bytes, not files, so that they can be fuzzed. Any defect of a file is an EnvError that names the
// file, what was expected and what was found.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

/// u8: also the bytes of a text; i32: also uint32, whose tokens fit into it; i8, i16, i64: only in Megatron's files.
enum class TokenType : uint8_t { u8, u16, i32, i8, i16, i64 };
int64_t byte_size(TokenType type);
std::string_view to_string(TokenType type);  ///< "uint8", "uint16", "int32", …

inline constexpr int64_t kTokenHeaderBytes = 1024;

struct TokenFormat {
  TokenType type = TokenType::u16;
  bool has_header = false;
  int64_t count = 0;  ///< number of tokens

  int64_t header_bytes() const { return has_header ? kTokenHeaderBytes : 0; }
};

/// `start`: the first kTokenHeaderBytes of the file, or all of it. `without_header`: the type of a file that has none.
TokenFormat parse_token_header(std::span<const uint8_t> start, int64_t file_bytes, TokenType without_header,
                               const std::string& file);

/// The header of llm.c for `count` tokens of u16 or i32; `count` fits an int32.
std::array<uint8_t, kTokenHeaderBytes> token_header(TokenType type, int64_t count);

/// Tokens [first, first + count) of the body, as int32. Bytes of any alignment.
void copy_tokens(std::span<const uint8_t> body, TokenType type, int64_t first, int64_t count, int32_t* out);

/// The smallest and the largest token of the body. If it is empty, least is greater than most.
struct TokenRange {
  int64_t least = 1, most = 0;
};
TokenRange range_of(std::span<const uint8_t> body, TokenType type);

/// The place of the first token of the body that is not in [0, below).
std::optional<int64_t> first_outside(std::span<const uint8_t> body, TokenType type, int64_t below);

}  // namespace trainctl
