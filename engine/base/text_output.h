// Outputs of a function that formats text: one appends it to a string, the other only measures it, without a string.
// Plans of thousands of ranks need the sizes of all their files, and no text of them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace trainctl {

struct TextOutput {
  std::string& to;

  void text(std::string_view added) { to.append(added); }
  void number(int64_t value) {
    const fmt::format_int digits(value);
    to.append(digits.data(), digits.size());
  }
};

struct TextLength {
  int64_t bytes = 0;

  void text(std::string_view added) { bytes += static_cast<int64_t>(added.size()); }
  /// `value` is not negative.
  void number(int64_t value) {
    for (++bytes; value >= 10; value /= 10) ++bytes;
  }
};

}  // namespace trainctl
