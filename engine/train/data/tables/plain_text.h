// Whether bytes of a format without text types are a text.
#pragma once

#include <string_view>

namespace trainctl {

/// Whether the bytes are UTF-8 without control characters.
bool is_plain_text(std::string_view bytes);

}  // namespace trainctl
