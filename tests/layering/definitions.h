// The names that a source or a header defines, found by its text. Declarations begin unindented, as clang-format writes
// them.
#pragma once

#include <istream>
#include <set>
#include <string>
#include <vector>

namespace trainctl {

/// A definition, and the namespaces around it, outermost first; "" stands for an anonymous namespace.
struct Definition {
  std::vector<std::string> scopes;
  std::string text;  ///< up to the line with the first `{` or `;`, in one line

  bool is_anonymous() const;
  /// The scopes and the name: "trainctl::kName", "trainctl::Type", "trainctl::function(types)", or "alias = meaning";
  /// "" if the text defines none.
  std::string name() const;
};

std::vector<Definition> definitions_of(std::istream& source);

}  // namespace trainctl
