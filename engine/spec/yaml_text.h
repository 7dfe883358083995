// The text of a job file in the form in which yaml-cpp can read it, and back.
#pragma once

#include <string>

namespace trainctl {

/// In flow style a '{' or '}' would end a plain value, so the braces of expressions, ${…}, go through the parser as
/// bytes that no job file has. show_braces() restores them in the values that the parser returns.
std::string hide_braces(std::string text);
std::string show_braces(std::string text);

/// json.dumps writes a character beyond U+FFFF as two escapes, "\\ud83d\\ude00", and YAML as one, "\\U0001f600".
/// Returns the text with each such pair as one escape.
std::string with_joined_surrogates(const std::string& text);

}  // namespace trainctl
