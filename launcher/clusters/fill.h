// Fills in the templates of templates/clusters.
//
//   name: {{name}}           the value, within the line; a line whose only value is empty is left out
//     - {{volumes}}          a value of several lines: the line is repeated for each
//       {{pod}}              the only text of its line: a value of several lines is indented like it
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace trainctl::clusters {

using Values = std::map<std::string, std::string>;

/// Each line of a template has one of the three forms, so a line with a value of several lines has no other value.
std::string fill(std::string_view text, const Values& values);

/// Quotes a word for a POSIX shell if necessary.
std::string shell_word(const std::string& text);
/// A quoted YAML scalar.
std::string yaml_text(const std::string& text);

}  // namespace trainctl::clusters
