// A template as tokens, with trim_blocks and lstrip_blocks, as transformers sets them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trainctl::jinja {

enum class TokenKind : uint8_t {
  text,
  block_begin,
  block_end,
  output_begin,
  output_end,
  name,
  string,
  integer,
  real,
  symbol,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;
  int line = 1;
};

/// Throws EnvError, with the line, for what is not a template.
std::vector<Token> tokenize_template(std::string_view source);

}  // namespace trainctl::jinja
