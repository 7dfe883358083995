// Texts that a terminal shows as they are.
#include "engine/base/printable.h"

#include <doctest/doctest.h>

#include "engine/base/error.h"

using namespace trainctl;

TEST_CASE("bytes that would change how a terminal shows a text are written as escapes") {
  CHECK(printable("plain, \xc3\xa4\xe6\x97\xa5\xf0\x9f\x98\x80") == "plain, \xc3\xa4\xe6\x97\xa5\xf0\x9f\x98\x80");
  CHECK(printable("\x1b[31mred\n") == "\\x1b[31mred\\x0a");
  CHECK(printable("\x7f") == "\\x7f");
  CHECK(printable("\xc2\x9b") == "\\xc2\\x9b");  // C1
  CHECK(printable("a\xe2\x80\xae"
                  "b") ==
        "a\\xe2\\x80\\xae"
        "b");                                             // right to left
  CHECK(printable("\xff\xe6\x97") == "\\xff\\xe6\\x97");  // not UTF-8
  CHECK(find_unprintable("ab\tc") == 2);
  CHECK(find_unprintable("abc") == std::string::npos);
}

TEST_CASE("a shortened text ends with a whole character") {
  CHECK(shortened("short") == "short");
  const std::string text = std::string(59, 'a') +
                           "\xc3\xa4"
                           "b";
  CHECK(shortened(text) == std::string(59, 'a') + "...");
}

TEST_CASE("a rendered error is free of control characters, and its caret stays in place") {
  const Diagnostic error{{"job.yaml", 1, 4}, "na\x1bme", "not '\x1b[2J'", "hint\x07"};
  CHECK(render(error,
               "\x1b"
               "ab: c\n") ==
        "job.yaml:1:4: na\\x1bme: not '\\x1b[2J'\n    \\x1b"
        "ab: c\n          ^ hint\\x07\n");
}

TEST_CASE("a byte order mark does not move the caret") {
  const Diagnostic error{{"job.yaml", 1, 2}, "", "wrong", ""};
  CHECK(render(error,
               "\xEF\xBB\xBF"
               "ab\n") == "job.yaml:1:2: wrong\n    ab\n     ^\n");
}

TEST_CASE("a line that a rank wrote cannot control the terminal") {
  CHECK(terminal_line("plain\ttext, \xc3\xa4") == "plain\ttext, \xc3\xa4");
  CHECK(terminal_line("a\x1b[2Jb\x1b[1;31mc\x1b[0m\x1b[?1049hd") == "abcd");            // erase, colors, other screen
  CHECK(terminal_line("a\x1b]0;title\x07" "b\x1b]52;c;Y3VybA==\x1b\\c") == "abc");      // title, clipboard
  CHECK(terminal_line("a\x1b" "Pq#0\x1b\\b\x1b" "cc\x1b(0d\x1b" "7e") == "abcde");     // sixel, reset, character set
  CHECK(terminal_line("never ends \x1b]0;title") == "never ends ");
  CHECK(terminal_line("never ends \x1b[12") == "never ends ");
  CHECK(terminal_line("ends in \x1b") == "ends in ");
  CHECK(terminal_line("a\x1b]0;x\x1b[2Jb") == "ab");
  CHECK(terminal_line("bell \x07, back \x08, C1 \xc2\x9b" "2J, not UTF-8 \x9b") ==
        "bell \\x07, back \\x08, C1 \\xc2\\x9b2J, not UTF-8 \\x9b");
  CHECK(terminal_line(" 50%\r100%\r") == "100%");
  CHECK(terminal_line("rank 0 | all well\rrank 1 | pwned") == "rank 1 | pwned");
  CHECK(terminal_text("a\x1b[31m\nb\n\n\x1b[H") == "a\nb\n\n");
}

TEST_CASE("a message keeps its lines, and control characters in them are shown escaped") {
  CHECK(printable_lines("a\x1b[31m\n\tb\n") == "a\\x1b[31m\n\\x09b\n");
  CHECK(printable_lines("") == "");
}

TEST_CASE("the colors of a line may be kept, but no other escape sequences, and end with the line") {
  CHECK(terminal_line("a\x1b[1;31mb\x1b[2Jc", true) == "a\x1b[1;31mbc\x1b[0m");
  CHECK(terminal_line("a\x1b[38:5:1mb\x1b[>4;1mc", true) == "a\x1b[38:5:1mbc\x1b[0m");
  CHECK(terminal_line("plain", true) == "plain");
}
