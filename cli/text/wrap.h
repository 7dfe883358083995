// Text that fits into a number of columns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// Splits text without escape sequences into lines of at most `width` columns, between words where possible, else after
/// punctuation. Returns at least one line.
std::vector<std::string> wrap(std::string_view text, size_t width);

/// Wraps each line that is wider than `width`; the lines that continue it are indented two columns more. 0: unlimited.
std::string fit_lines(const std::string& text, size_t width);

/// A row "  label        text", whose further lines begin below the text.
std::string labelled(std::string_view label, std::string_view text, size_t width);

}  // namespace trainctl
