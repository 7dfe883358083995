// Words in braces that a host fills in.
#include "launcher/hosts/words.h"

#include <doctest/doctest.h>

using namespace trainctl::hosts;

TEST_CASE("hosts: known words in braces are filled in once, and other braces are kept") {
  const std::map<std::string, std::string> values = {{"a", "1{b}"}, {"b", "2"}};
  CHECK(fill_words("{a}{b}", values) == "1{b}2");
  CHECK(fill_words("{c} {} { {a {b}", values) == "{c} {} { {a 2");
  CHECK(fill_words("{{a}}", values) == "{1{b}}");
  CHECK(fill_words("", values).empty());
  CHECK(fill_words("}{", values) == "}{");
}

TEST_CASE("hosts: a user's text is the same after the words are filled in, whatever braces it has") {
  const std::map<std::string, std::string> launcher = {{"first_address", "10.0.0.2"}},
                                           agent = {{"a", "1"}, {"address", "2"}, {kBraceWord, "{"}};
  for (const char* text : {"", "{a}", "{{a}}", "{brace}", "{brace}a}", "{", "}", "{a", "x{first_address}y{address}z"})
    CHECK(fill_words(fill_words(literal(text), launcher), agent) == text);
}
