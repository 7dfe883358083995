// Tests of placeholders in braces, which a host replaces.
#include "launcher/hosts/placeholders.h"

#include <doctest/doctest.h>

using namespace trainctl::hosts;

TEST_CASE("hosts: known placeholders are replaced once, and other braces are kept") {
  const std::map<std::string, std::string> values = {{"a", "1{b}"}, {"b", "2"}};
  CHECK(fill_placeholders("{a}{b}", values) == "1{b}2");
  CHECK(fill_placeholders("{c} {} { {a {b}", values) == "{c} {} { {a 2");
  CHECK(fill_placeholders("{{a}}", values) == "{1{b}}");
  CHECK(fill_placeholders("", values).empty());
  CHECK(fill_placeholders("}{", values) == "}{");
}

TEST_CASE("hosts: replacing placeholders does not change a user's text, whatever braces it contains") {
  const std::map<std::string, std::string> launcher = {{"first_address", "10.0.0.2"}},
                                           agent = {{"a", "1"}, {"address", "2"}, {kBracePlaceholder, "{"}};
  for (const char* text : {"", "{a}", "{{a}}", "{brace}", "{brace}a}", "{", "}", "{a", "x{first_address}y{address}z"})
    CHECK(fill_placeholders(fill_placeholders(literal(text), launcher), agent) == text);
}
