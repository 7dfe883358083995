// Placeholders in the command of a rank on another host, for values known only there: "{address}".
#include "launcher/hosts/placeholders.h"

#include <algorithm>

namespace trainctl::hosts {

std::string literal(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '{')
      out += std::string("{") + kBracePlaceholder + "}";
    else
      out += c;
  }
  return out;
}

std::string fill_placeholders(std::string_view text, const std::map<std::string, std::string>& values) {
  std::string out;
  while (!text.empty()) {
    const size_t open = std::min(text.find('{'), text.size());
    out += text.substr(0, open);
    text.remove_prefix(open);
    const size_t close = text.find('}');
    const auto value =
        close == std::string_view::npos ? values.end() : values.find(std::string(text.substr(1, close - 1)));
    if (text.empty()) break;
    out += value == values.end() ? text.substr(0, 1) : std::string_view(value->second);
    text.remove_prefix(value == values.end() ? 1 : close + 1);
  }
  return out;
}

}  // namespace trainctl::hosts
