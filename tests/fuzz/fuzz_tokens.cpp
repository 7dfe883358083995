// libFuzzer target: any bytes are read as a file of tokens, or cause an EnvError. The tokens equal those of a plain
// loop.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/token_file.h"

namespace {

using namespace trainctl;

int64_t token_at(std::span<const uint8_t> body, TokenType type, int64_t i) {
  uint32_t value = 0;
  const auto width = static_cast<size_t>(byte_size(type));
  std::memcpy(&value, body.data() + static_cast<size_t>(i) * width, width);
  return static_cast<int32_t>(value);
}

void read_as(std::span<const uint8_t> bytes, TokenType without_header) {
  const auto start = bytes.first(std::min(bytes.size(), static_cast<size_t>(kTokenHeaderBytes)));
  const TokenFormat format = parse_token_header(start, static_cast<int64_t>(bytes.size()), without_header, "fuzz");
  const auto body = bytes.subspan(static_cast<size_t>(format.header_bytes()));
  if (static_cast<int64_t>(body.size()) != format.count * byte_size(format.type)) abort();
  std::vector<int32_t> tokens(static_cast<size_t>(format.count));
  copy_tokens(body, format.type, 0, format.count, tokens.data());
  int64_t stray = -1;
  constexpr int64_t kBelow = 256;
  for (int64_t i = 0; i < format.count; ++i) {
    const int64_t token = token_at(body, format.type, i);
    if (tokens[static_cast<size_t>(i)] != token) abort();
    if (stray < 0 && (token < 0 || token >= kBelow)) stray = i;
  }
  if (first_outside(body, format.type, kBelow).value_or(-1) != stray) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const TokenType type : {TokenType::u8, TokenType::u16, TokenType::i32}) {
    try {
      read_as({data, size}, type);
    } catch (const EnvError&) {
    }
  }
  return 0;
}
