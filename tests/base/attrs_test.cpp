// engine/base/attrs.h: typed access and printing.
#include "engine/base/attrs.h"

#include <doctest/doctest.h>

#include <limits>

#include "engine/base/error.h"

using namespace trainctl;

TEST_CASE("attributes are read by type, absent ones return the default") {
  Attrs attrs{{"units", int64_t{512}},
              {"bias", true},
              {"eps", 0.5},
              {"approximate", std::string("tanh")},
              {"dims", Ints{1, 2}}};
  CHECK(attrs.integer("units") == 512);
  CHECK(attrs.number("units") == 512.0);
  CHECK(attrs.flag("bias"));
  CHECK(attrs.number("eps", 1.0) == 0.5);
  CHECK(attrs.text("approximate") == "tanh");
  CHECK(attrs.ints("dims") == Ints{1, 2});
  CHECK(attrs.integer("none", 7) == 7);
  CHECK_FALSE(attrs.flag("none"));
  CHECK(attrs.text("none", "x") == "x");
  CHECK(attrs.ints("none").empty());
}

TEST_CASE("a value of another type and a missing one are our bugs") {
  Attrs attrs{{"bias", true}};
  CHECK_THROWS_AS((void)attrs.integer("bias", 0), InternalError);
  CHECK_THROWS_AS((void)attrs.number("bias", 0), InternalError);
  CHECK_THROWS_AS((void)attrs.integer("units"), InternalError);
  CHECK_THROWS_AS((void)attrs.number("eps"), InternalError);
}

TEST_CASE("setting replaces, erasing forgets") {
  Attrs attrs;
  attrs.set("p", 0.1);
  attrs.set("p", 0.2);
  CHECK(attrs.number("p") == 0.2);
  attrs.erase("p");
  attrs.erase("p");
  CHECK(attrs.empty());
}

TEST_CASE("attributes print sorted by name, numbers in the shortest form that reads back") {
  CHECK(to_string(Attrs{{"units", int64_t{512}}, {"bias", true}}) == "{bias: true, units: 512}");
  CHECK(to_string(Attrs{}) == "{}");
  CHECK(to_string(Value(0.1)) == "0.1");
  CHECK(to_string(Value(2.0)) == "2.0");
  CHECK(to_string(Value(1e-5)) == "1e-05");
  CHECK(to_string(Value(0.00392156862745098)) == "0.00392156862745098");
  CHECK(to_string(Value(std::numeric_limits<double>::infinity())) == ".inf");
  CHECK(to_string(Value(Ints{1, 28, 28})) == "[1, 28, 28]");
  CHECK(to_string(Value(std::vector<Ints>{{2, 1}, {2, 1}})) == "[[2, 1], [2, 1]]");
  CHECK(to_string(Value(std::vector<double>{0.5, 1.0})) == "[0.5, 1.0]");
}
