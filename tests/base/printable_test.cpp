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
