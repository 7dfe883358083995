// The text of a job file in the form in which yaml-cpp can read it: braces of expressions as other bytes.
#include "engine/spec/yaml_text.h"

#include <cstdio>
#include <regex>
#include <string_view>

#include "engine/spec/expression.h"

namespace trainctl {
namespace {

constexpr char kOpen = '\x01', kClose = '\x02';

}  // namespace

std::string hide_braces(std::string text) {
  for (size_t at = text.find("${"); at != std::string::npos; at = text.find("${", at)) {
    if (const size_t length = expression_length(std::string_view(text).substr(at))) text[at + length - 1] = kClose;
    text[at + 1] = kOpen;
  }
  return text;
}

std::string show_braces(std::string text) {
  for (size_t at = text.find(kOpen); at != std::string::npos; at = text.find(kOpen, at)) {
    if (at == 0 || text[at - 1] != '$') {
      ++at;
      continue;
    }
    text[at] = '{';
    const size_t close = text.find(kClose, at);
    if (close != std::string::npos && close < text.find(kOpen, at)) text[close] = '}';
  }
  return text;
}

std::string with_joined_surrogates(const std::string& text) {
  static const std::regex pair(R"(\\u[dD]([89abAB])([0-9a-fA-F]{2})\\u[dD]([c-fC-F])([0-9a-fA-F]{2}))");
  std::string joined;
  auto at = text.cbegin();
  for (std::sregex_iterator it(text.begin(), text.end(), pair), end; it != end; ++it) {
    const auto unit = [&](int high, int low) { return std::stoul("d" + it->str(high) + it->str(low), nullptr, 16); };
    char escape[11];
    std::snprintf(escape, sizeof escape, "\\U%08lx", 0x10000 + ((unit(1, 2) & 0x3ff) << 10) + (unit(3, 4) & 0x3ff));
    joined.append(at, (*it)[0].first).append(escape);
    at = (*it)[0].second;
  }
  return joined.append(at, text.cend());
}

}  // namespace trainctl
