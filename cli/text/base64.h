// Base64 (RFC 4648), for images inside a page.
#pragma once

#include <string>
#include <string_view>

namespace trainctl {

std::string base64_of(std::string_view bytes);

}  // namespace trainctl
