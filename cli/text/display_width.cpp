// The width of a text in columns of a terminal.
#include "cli/text/display_width.h"

namespace trainctl {

size_t display_width(std::string_view text) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      const size_t end = text.find('m', i);
      i = end == std::string_view::npos ? text.size() : end;
    } else if (!continues_character(text[i])) {
      ++columns;
    }
  }
  return columns;
}

}  // namespace trainctl
