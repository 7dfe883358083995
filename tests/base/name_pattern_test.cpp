// Names with `*`: which names a pattern matches.
#include "engine/base/name_pattern.h"

#include <doctest/doctest.h>

using namespace trainctl;

TEST_CASE("a pattern selects names by stars, single characters and ranges of numbers") {
  CHECK(name_matches("h.*.fc", "h.3.fc"));
  CHECK(name_matches("h.?.fc", "h.3.fc"));
  CHECK_FALSE(name_matches("h.?.fc", "h.13.fc"));
  CHECK(name_matches("*", ""));
  CHECK(name_matches("*a*b*", "xaxxbx"));
  CHECK_FALSE(name_matches("h.*.fc", "h.3.fc2"));
  for (const char* name : {"h.0.fc", "h.15.fc", "h.20.fc"}) CHECK(name_matches("h.{0-15,20}.fc", name));
  for (const char* name : {"h.16.fc", "h.21.fc", "h.x.fc", "h..fc", "h.2.proj", "h.02.fc", "h.-1.fc"})
    CHECK_FALSE(name_matches("h.{0-15,20}.fc", name));
  CHECK(name_matches("h.{0-30:2}.*", "h.28.attn.q"));
  CHECK_FALSE(name_matches("h.{0-30:2}.*", "h.27.attn.q"));
  CHECK(name_matches("*{2}", "block2"));
}

TEST_CASE("a range of numbers matches a whole number and no part of one") {
  CHECK_FALSE(name_matches("*{2}", "block12"));
  CHECK_FALSE(name_matches("h.{1}*", "h.12"));
  CHECK(name_matches("h.{1}*", "h.1.fc"));
}

TEST_CASE("a range that is not well formed matches no number") {
  for (const char* pattern :
       {"h.{}", "h.{3", "h.{a}", "h.{3-}", "h.{-3}", "h.{5-3}", "h.{0-9:0}", "h.{03}", "h.{99999999999999999999}"})
    CHECK_FALSE(name_matches(pattern, "h.3"));
  CHECK(is_name_pattern("h.{3}.fc"));
  CHECK(is_name_pattern("h.?"));
  CHECK_FALSE(is_name_pattern("h.3.fc"));
}
