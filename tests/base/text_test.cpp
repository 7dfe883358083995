// engine/base/text.h: text and numbers for users.
#include "engine/base/text.h"

#include <doctest/doctest.h>

#include <limits>

using namespace trainctl;

TEST_CASE("edit distance counts a swap of neighbours as one edit") {
  CHECK(edit_distance("relu", "relu") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("relu", "reul") == 1);
  CHECK(edit_distance("ca", "abc") == 3);  // optimal string alignment, not full Damerau
}

TEST_CASE("the nearest name is the one with the fewest edits, and none if all are far") {
  CHECK(nearest("stges", {"stages", "schedule", "strategies"}) == "stages");
  CHECK(nearest("learningrate", {"learning_rate", "momentum"}) == "learning_rate");
  CHECK(nearest("zebra", {"stages", "schedule"}) == "");
  CHECK(nearest("lyer1", {"layer2", "layer1"}) == "layer1");
  CHECK(nearest("x", {"a", "b"}) == "");
  CHECK(nearest("x", {}) == "");
  CHECK(did_you_mean("stges", {"stages"}) == "did you mean 'stages'?");
  CHECK(did_you_mean("zebra", {"stages"}) == "");
}

TEST_CASE("bytes print in the unit that keeps the number under 1024") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1.0 KiB");
  CHECK(format_bytes(262144) == "256.0 KiB");
  CHECK(format_bytes((1 << 20) - 1) == "1.0 MiB");
  CHECK(format_bytes(int64_t{25} * 1000 * 1000 * 1000) == "23.3 GiB");
  CHECK(format_bytes(-2048) == "-2.0 KiB");
  CHECK(format_bytes(std::numeric_limits<int64_t>::max()) == "8.0 EiB");
}

TEST_CASE("long integers print with commas") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(262144) == "262,144");
  CHECK(with_commas(-1234567) == "-1,234,567");
  CHECK(with_commas(-123) == "-123");
  CHECK(with_commas(std::numeric_limits<int64_t>::min()) == "-9,223,372,036,854,775,808");
}

TEST_CASE("lists join with commas") {
  CHECK(join({}) == "");
  CHECK(join({"a"}) == "a");
  CHECK(join({"a", "b"}, "|") == "a|b");
  CHECK(format_list({}) == "[]");
  CHECK(format_list({2, -3}) == "[2, -3]");
}

TEST_CASE("a glob's star matches any characters, dots included") {
  CHECK(glob_match("h.*.fc", "h.0.fc"));
  CHECK(glob_match("h.*.fc", "h.11.mlp.fc"));
  CHECK_FALSE(glob_match("h.*.fc", "h.0.fc2"));
  CHECK(glob_match("*", ""));
  CHECK(glob_match("layer?", "layer1"));
  CHECK_FALSE(glob_match("layer?", "layer"));
  CHECK_FALSE(glob_match("layer?", "layer12"));
  CHECK(glob_match("a*b*c", "axxbyybzc"));
  CHECK_FALSE(glob_match("a*b*c", "axxbyybz"));
  CHECK(glob_match("", ""));
  CHECK_FALSE(glob_match("", "a"));
  CHECK(is_glob("h.*"));
  CHECK(is_glob("h.?"));
  CHECK_FALSE(is_glob("h.0"));
}

TEST_CASE("the stable hash is FNV-1a, the same everywhere") {
  CHECK(stable_hash("") == 0xcbf29ce484222325u);
  CHECK(stable_hash("a") == 0xaf63dc4c8601ec8cu);
  CHECK(stable_hash("foobar") == 0x85944171f73967e8u);
}
