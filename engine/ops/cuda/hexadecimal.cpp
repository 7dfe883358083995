// Bytes as hexadecimal digits, in files of kept choices.
#include "engine/ops/cuda/hexadecimal.h"

namespace trainctl {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

std::string hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<size_t>(byte) / 16];
    text += kDigits[std::to_integer<size_t>(byte) % 16];
  }
  return text;
}

bool read_hexadecimal(std::string_view text, std::span<std::byte> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]), low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    bytes[i] = static_cast<std::byte>(16 * high + low);
  }
  return true;
}

}  // namespace trainctl
