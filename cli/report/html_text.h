// Text as HTML.
#pragma once

#include <string>
#include <string_view>

namespace trainctl {

/// The text with & < > " as entities.
std::string html_text(std::string_view text);

}  // namespace trainctl
