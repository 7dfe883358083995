// String functions with the behaviour of Python's, shared by filters and methods.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/text/jinja/value.h"

namespace trainctl::jinja {

/// Removes these characters from the ends, by default white space.
std::string strip_text(std::string_view text, std::u32string_view characters, bool left = true, bool right = true);
std::string lower_text(std::string_view text);
std::string upper_text(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_text(std::string_view text);
/// Splits at runs of white space, at most `most` times (-1: without limit). White space at the ends gives no parts.
Value split_at_blanks(std::string_view text, int64_t most);
std::string replace_text(std::string_view text, std::string_view what, std::string_view with, int64_t most);

}  // namespace trainctl::jinja
