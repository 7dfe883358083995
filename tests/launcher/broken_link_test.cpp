// Tests that the launcher names the right link as the broken one.
#include "launcher/hosts/broken_link.h"

#include <doctest/doctest.h>

using namespace trainctl;
using namespace trainctl::hosts;

namespace {

HostLinks unable_to_reach(const std::string& host, const std::vector<std::string>& others) {
  HostLinks links{host, true, {}};
  for (const std::string& other : others) links.faults[other] = "cannot connect to " + other;
  return links;
}

}  // namespace

TEST_CASE("a broken link has two hosts that are heard, and the fault that the first one reports") {
  CHECK(!broken_link({unable_to_reach("a", {}), unable_to_reach("b", {})}));
  const auto link = broken_link({unable_to_reach("a", {}), unable_to_reach("b", {"a"})});
  REQUIRE(link);
  CHECK(link->from == "a");
  CHECK(link->to == "b");
  CHECK(link->fault == "b cannot connect to a");
  CHECK(link->worse.empty());
  HostLinks silent = unable_to_reach("b", {"a"});
  silent.is_heard = false;
  CHECK(!broken_link({unable_to_reach("a", {"b"}), silent}));
}

TEST_CASE("of several broken links, the one named is of the host that has the most of them") {
  const auto link =
      broken_link({unable_to_reach("a", {"c"}), unable_to_reach("b", {}), unable_to_reach("c", {"a", "b"})});
  REQUIRE(link);
  CHECK(link->from == "a");
  CHECK(link->to == "c");
  CHECK(link->worse == "c");
}
