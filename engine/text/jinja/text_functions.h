// Python's functions of texts, which filters and methods share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/text/jinja/value.h"

namespace trainctl::jinja {

/// Without these characters at its ends; `characters` empty: white space.
std::string strip_text(std::string_view text, std::u32string_view characters, bool left = true, bool right = true);
std::string lower_text(std::string_view text);
std::string upper_text(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_text(std::string_view text);
/// At runs of white space; the ends are left out. `most` splits, -1: any number.
Value split_at_blanks(std::string_view text, int64_t most);
std::string replace_text(std::string_view text, std::string_view what, std::string_view with, int64_t most);

}  // namespace trainctl::jinja
