// launch.hosts and hostfiles.
#include "engine/spec/hosts.h"

#include <doctest/doctest.h>

using namespace trainctl;

TEST_CASE("a host is a name, perhaps with a user and a number of ranks") {
  CHECK(parse_host("a") == HostRanks{"a", 0});
  CHECK(parse_host("b:4") == HostRanks{"b", 4});
  CHECK(parse_host("me@node-1.lan:16") == HostRanks{"me@node-1.lan", 16});
  CHECK(parse_host("10.0.0.7:2") == HostRanks{"10.0.0.7", 2});
  CHECK(parse_host("[::1]:2") == HostRanks{"::1", 2});
  CHECK(parse_host("me@[fe80::1%eth0]") == HostRanks{"me@fe80::1%eth0", 0});
  CHECK(parse_host("fe80::1") == HostRanks{"fe80::1", 0});
}

TEST_CASE("a host name that ssh would read as an option, or a shell as several words, is refused") {
  for (const char* text : {"", "-oProxyCommand=x", "me@-a", "a b", "a;b", "a\n", "$(b)", "a:0", "a:-1", "a:x",
                           "a:", "@a", "[::1", "x[::1]", "a@b@c", "a:99999999999"})
    CHECK_MESSAGE(!parse_host(text), text);
}

TEST_CASE("hosts with numbers are filled in order, and the others share the remaining ranks") {
  using Hosts = std::vector<HostRanks>;
  CHECK(place_ranks(parse_hosts({"a", "b:4", "c"}), 8).hosts == Hosts{{"a", 2}, {"b", 4}, {"c", 2}});
  CHECK(place_ranks(parse_hosts({"a", "b:4", "c"}), 7).hosts == Hosts{{"a", 2}, {"b", 4}, {"c", 1}});
  CHECK(place_ranks(parse_hosts({"a", "b"}), 5).hosts == Hosts{{"a", 3}, {"b", 2}});
  CHECK(place_ranks(parse_hosts({"a:4", "b:4"}), 8).hosts == Hosts{{"a", 4}, {"b", 4}});
  CHECK(place_ranks(parse_hosts({"a:4", "b:4"}), 3).hosts == Hosts{{"a", 3}});
  CHECK(place_ranks(parse_hosts({"a:2", "b:4"}), 8).fault ==
        "the hosts have slots for only 6 ranks, but launch.ranks is 8");
  CHECK(place_ranks(parse_hosts({"a", "b:4", "c"}), 5).fault == "2 hosts are left without ranks: launch.ranks is 5");
}

TEST_CASE("hostfiles are read as mpirun and DeepSpeed read them") {
  std::string fault;
  using Hosts = std::vector<HostRanks>;
  CHECK(parse_hostfile("# cluster\nworker-1 slots=4\n\nworker-2 slots=8 max_slots=16  # big\n", fault) ==
        Hosts{{"worker-1", 4}, {"worker-2", 8}});
  CHECK(parse_hostfile("a\nb:2", fault) == Hosts{{"a", 0}, {"b", 2}});
  CHECK(parse_hostfile("a\r\na\r\nb slots=2\nb slots=1\n", fault) == Hosts{{"a", 2}, {"b", 3}});
  CHECK(parse_hostfile("\xEF\xBB\xBF"
                       "a slots=1\n",
                       fault) == Hosts{{"a", 1}});  // with a byte order mark
  CHECK_FALSE(parse_hostfile("a\nb slot=2\n", fault));
  CHECK(fault == "line 2 does not have the form: host slots=4");
  CHECK_FALSE(parse_hostfile("a b\n", fault));
  CHECK_FALSE(parse_hostfile("-a\n", fault));
}
