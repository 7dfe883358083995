// The width of a text in columns of a terminal.
#pragma once

#include <cstddef>
#include <string_view>

namespace trainctl {

/// Returns whether this byte continues a UTF-8 character.
inline bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

/// Columns without escape sequences; wide characters count as one.
size_t display_width(std::string_view text);

}  // namespace trainctl
