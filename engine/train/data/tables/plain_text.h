// Properties of texts in files that may contain any bytes.
#pragma once

#include <string_view>

namespace trainctl {

/// Returns whether the bytes are UTF-8 without control characters.
bool is_plain_text(std::string_view bytes);

/// True if no value of a JSON text is nested in more than 512 lists and objects. Writing deeper values would exhaust
/// the stack.
bool is_shallow_json(std::string_view text);

}  // namespace trainctl
