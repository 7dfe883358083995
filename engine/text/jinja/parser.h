// Parses the text of a template into a tree.
#pragma once

#include <string_view>

#include "engine/text/jinja/ast.h"

namespace trainctl::jinja {

/// Throws EnvError, with the line, for a template that is wrong, or that has a statement, filter or test that is not
/// supported, which it names.
Body parse(std::string_view source);

}  // namespace trainctl::jinja
