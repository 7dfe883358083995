// The characters that GPT-2's byte-level tokenizers use for bytes: a printable byte is its own character, others are
// characters from U+0100 on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainctl {

/// The character of each byte, in UTF-8.
const std::array<std::string, 256>& byte_characters();
/// The byte that a character represents; none if it represents none.
std::optional<uint8_t> byte_of(char32_t character);
/// The bytes that a text of such characters represents; none if it has other characters.
std::optional<std::string> to_bytes(std::string_view text);

}  // namespace trainctl
