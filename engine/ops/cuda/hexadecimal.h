// Bytes as hexadecimal digits, in files of kept choices.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

/// Two lowercase digits per byte.
std::string hexadecimal(std::span<const std::byte> bytes);

/// Reads what hexadecimal() wrote; false if the text is not that of as many bytes.
bool read_hexadecimal(std::string_view text, std::span<std::byte> bytes);

}  // namespace trainctl
