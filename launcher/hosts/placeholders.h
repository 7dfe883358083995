// Placeholders in the command of a rank on another host, for values known only there: "{address}". A user's text
// contains none: its braces are literal, as on a single host.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace trainctl::hosts {

/// Escapes a user's text so that fill_placeholders only restores its braces.
std::string literal(std::string_view text);

/// Replaces each {name} in `values`, once, from left to right; leaves other braces alone.
std::string fill_placeholders(std::string_view text, const std::map<std::string, std::string>& values);

/// Name of the placeholder for an opening brace in a literal text; for `values`.
inline constexpr const char* kBracePlaceholder = "brace";

}  // namespace trainctl::hosts
