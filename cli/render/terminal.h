// What a terminal can do: colours only where there is one, and never against NO_COLOR.
#pragma once

#include <string>
#include <string_view>

namespace trainctl {

bool is_terminal(int fd);

/// Whether what was written to `fd` can be taken back: a terminal, and not a dumb one.
bool can_redraw(int fd);

/// Whether text written to `fd` may be coloured (see no-color.org).
bool colors(int fd);

enum class Paint { red, green, yellow, blue, magenta, cyan, dim, bold };

/// `text` in that colour, or as it is where `fd` has none.
std::string paint(int fd, Paint paint, std::string_view text);

/// Columns of the terminal; 80 where it does not say.
int terminal_width(int fd);

}  // namespace trainctl
