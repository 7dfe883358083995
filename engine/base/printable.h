// UTF-8, and text that a terminal can show.
#pragma once

#include <string>
#include <string_view>

namespace trainctl {

/// Bytes of the UTF-8 character at the front of `text`, which is not empty; 0 if it is not valid UTF-8.
size_t utf8_length(std::string_view text);
size_t count_characters(std::string_view utf8);
/// The first 60 bytes, at a whole character, and "..." if there are more.
std::string shortened(std::string_view text);

/// True of characters that change how a terminal shows the text around them: C0 and C1 controls, DEL, line and
/// paragraph separators, marks of the writing direction.
bool is_control(std::string_view utf8_character);
/// The offset of the first such character, or of the first byte that is not UTF-8; npos if there is none.
size_t find_unprintable(std::string_view text);
/// `text` with "\x1b" in place of each byte of such characters, so that it can be shown on a terminal as one line.
std::string printable(std::string_view text);
/// The same for each line of a text, for messages that quote names and values.
std::string printable_lines(std::string_view text);

/// A line that a rank wrote, as a terminal may show it. Escape sequences are left out, with `keeps_colors` all but those
/// of colours, whose effect then ends with the line. So is what a carriage return overwrites: a progress bar shows its last
/// state. Tabs stay, and other characters are as in printable().
std::string terminal_line(std::string_view line, bool keeps_colors = false);
/// The same of each line of a text.
std::string terminal_text(std::string_view text);

}  // namespace trainctl
