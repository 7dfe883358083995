// Capabilities of a terminal. Colors are used only on a terminal, and never if NO_COLOR is set.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trainctl {

bool is_terminal(int fd);

/// Returns whether text written to `fd` can be erased: a terminal that is not dumb.
bool can_redraw(int fd);

/// Returns whether text written to `fd` may be colored (see no-color.org).
bool colors(int fd);
/// `when`: always, never, or auto, which is colors(fd).
bool colors(int fd, std::string_view when);

enum class Paint { red, green, yellow, blue, magenta, cyan, dim, bold };

/// `text` in that color.
std::string painted(Paint paint, std::string_view text);
/// `text` in that color, or unchanged if `fd` has no colors.
std::string paint(int fd, Paint paint, std::string_view text);

/// Columns of the terminal; 80 if unknown.
int terminal_width(int fd);

/// Columns for text that is printed once: the variable COLUMNS, else those of the terminal, else 80.
size_t output_width(int fd);

}  // namespace trainctl
