// Writes escape sequences, and detects whether a terminal accepts them.
#include "cli/render/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace trainctl {

bool is_terminal(int fd) { return isatty(fd) == 1; }

bool can_redraw(int fd) {
  const char* term = std::getenv("TERM");
  return is_terminal(fd) && term != nullptr && std::string_view(term) != "dumb";
}

bool colors(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool refused = no_color != nullptr && *no_color != '\0';
  return !refused && can_redraw(fd);
}

bool colors(int fd, std::string_view when) { return when == "always" || (when == "auto" && colors(fd)); }

std::string paint(int fd, Paint paint, std::string_view text) {
  return colors(fd) ? painted(paint, text) : std::string(text);
}

std::string painted(Paint paint, std::string_view text) {
  static constexpr std::string_view kCodes[] = {"31", "32", "33", "34", "35", "36", "2", "1"};
  return "\033[" + std::string(kCodes[static_cast<int>(paint)]) + "m" + std::string(text) + "\033[0m";
}

size_t output_width(int fd) {
  constexpr size_t kPlainWidth = 80;
  const char* columns = std::getenv("COLUMNS");
  if (const int given = columns == nullptr ? 0 : std::atoi(columns); given > 0) return static_cast<size_t>(given);
  return is_terminal(fd) ? static_cast<size_t>(terminal_width(fd)) : kPlainWidth;
}

int terminal_width(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace trainctl
