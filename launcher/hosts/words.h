// Words in braces in the command of a rank on another host, for what is known only there: "{address}". A user's text
// has none: its braces are literal, as on one host.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace trainctl::hosts {

/// A user's text in which fill_words replaces nothing: it restores the braces.
std::string literal(std::string_view text);

/// Replaces each {name} in `values`, once, from left to right; leaves other braces alone.
std::string fill_words(std::string_view text, const std::map<std::string, std::string>& values);

/// The name of the word that stands for an opening brace of a literal text; for `values`.
inline constexpr const char* kBraceWord = "brace";

}  // namespace trainctl::hosts
