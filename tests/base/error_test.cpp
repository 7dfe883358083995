// engine/base/error.h: the text of errors.
#include "engine/base/error.h"

#include <doctest/doctest.h>

using namespace trainctl;

TEST_CASE("a diagnostic renders as a compiler prints it, with the caret under the column") {
  const std::string source = "name: x\nparallel:\n  stages: 3\n";
  const Diagnostic d{
      {"job.yaml", 3, 11}, "parallel.stages", "8 ranks cannot be divided evenly into 3 stages", "use 1, 2, 4 or 8"};
  CHECK(render(d, source) ==
        "job.yaml:3:11: parallel.stages: 8 ranks cannot be divided evenly into 3 stages\n      stages: 3\n           "
        "   ^ use 1, 2, 4 or 8\n");
}

TEST_CASE("a diagnostic without a position has only its path and hint") {
  const Diagnostic d{{}, "parallel.stages", "must be at least 1", "try 2"};
  CHECK(render(d, "name: x\n") == "parallel.stages: must be at least 1\n  try 2\n");
  const Diagnostic file_only{{"job.yaml", 0, 0}, "", "cannot be read", ""};
  CHECK(render(file_only, "") == "job.yaml: cannot be read\n");
}

TEST_CASE("the caret keeps tabs, counts characters and survives positions outside the text") {
  const Diagnostic tab{{"j", 1, 3}, "", "m", ""};
  CHECK(render(tab, "\ta: b") == "j:1:3: m\n    \ta: b\n    \t ^\n");
  const Diagnostic umlaut{{"j", 1, 4}, "", "m", ""};
  CHECK(render(umlaut, "\xc3\xa4\xc3\xb6\xc3\xbcx\r\n") == "j:1:4: m\n    \xc3\xa4\xc3\xb6\xc3\xbcx\n       ^\n");
  const Diagnostic beyond_line{{"j", 1, 99}, "", "m", ""};
  CHECK(render(beyond_line, "ab\n") == "j:1:99: m\n    ab\n      ^\n");
  const Diagnostic beyond_text{{"j", 9, 1}, "", "m", "h"};
  CHECK(render(beyond_text, "ab\n") == "j:9:1: m\n  h\n");
}

TEST_CASE("a long line is shown around the column") {
  const std::string line = std::string(500, 'a') + "X" + std::string(500, 'b');
  const std::string text = render({{"j", 1, 501}, "", "m", ""}, line);
  const size_t excerpt = text.find('\n') + 1, caret = text.find('^');
  const size_t caret_line = text.rfind('\n', caret) + 1;
  CHECK(text.size() < 400);
  CHECK(text[excerpt + (caret - caret_line)] == 'X');
}

TEST_CASE("a SpecError carries and prints every diagnostic") {
  const SpecError e({{{"j", 1, 2}, "a", "first", ""}, {{"j", 3, 4}, "b", "second", "do this"}});
  CHECK(e.diagnostics().size() == 2);
  CHECK(std::string(e.what()) == "j:1:2: a: first\nj:3:4: b: second (do this)");
  const SpecError one({"j", 1, 2}, "a", "first");
  CHECK(one.diagnostics().size() == 1);
}

TEST_CASE("check() names the condition that failed and where") {
  CHECK_NOTHROW(check(true, "x"));
  try {
    check(false, "the arena is aligned");
    FAIL("check(false) returned");
  } catch (const InternalError& e) {
    const std::string what = e.what();
    CHECK(what.find("the arena is aligned") != std::string::npos);
    CHECK(what.find("error_test.cpp") != std::string::npos);
  }
}
