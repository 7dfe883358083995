// The characters that GPT-2's byte-level tokenizers use for bytes: a printable byte is its own character, others are
// characters from U+0100 on.
#include "engine/text/byte_alphabet.h"

#include "engine/text/unicode.h"

namespace trainctl {
namespace {

constexpr char32_t kFirstSubstitute = 0x100;

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// Code points by byte.
const std::array<char32_t, 256>& substitutes() {
  static const std::array<char32_t, 256> table = [] {
    std::array<char32_t, 256> codes{};
    char32_t next = kFirstSubstitute;
    for (int byte = 0; byte < 256; ++byte)
      codes[static_cast<size_t>(byte)] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    return codes;
  }();
  return table;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> table = [] {
    std::array<std::string, 256> characters;
    for (size_t byte = 0; byte < 256; ++byte) append_utf8(characters[byte], substitutes()[byte]);
    return characters;
  }();
  return table;
}

std::optional<uint8_t> byte_of(char32_t character) {
  static const std::array<int16_t, 0x150> bytes = [] {
    std::array<int16_t, 0x150> table;
    table.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) table[substitutes()[byte]] = static_cast<int16_t>(byte);
    return table;
  }();
  if (character >= bytes.size() || bytes[character] < 0) return {};
  return static_cast<uint8_t>(bytes[character]);
}

std::optional<std::string> to_bytes(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    const std::optional<uint8_t> byte = byte_of(c.value);
    if (!byte) return {};
    result += static_cast<char>(*byte);
    at += c.bytes;
  }
  return result;
}

}  // namespace trainctl
