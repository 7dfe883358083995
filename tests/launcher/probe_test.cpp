// Tests how a launcher reads the answers of a probe of a host.
#include "launcher/hosts/probe.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using namespace trainctl;
using namespace trainctl::hosts;

namespace {

/// Hosts on each of which the same script runs in place of a probe.
class FakeHosts : public Transport {
 public:
  explicit FakeHosts(std::string script) : script_(std::move(script)) {}
  std::string name() const override { return "a shell"; }
  std::vector<std::string> words(const std::string&, const std::string&) const override {
    return {"sh", "-c", script_};
  }

 private:
  std::string script_;
};

}  // namespace

TEST_CASE("facts of a host whose type differs from what a probe writes count as unknown") {
  const FakeHosts hosts(R"(echo 'trainctl-probe {"machine": 1, "cores": "x", "port": [], "memory": 2, "time": {}}'
read -r others
echo 'trainctl-link {"fault": 5, "latency": "x", "bandwidth": 1.5}'
cat > /dev/null)");
  Cluster cluster;
  for (int rank = 0; rank < 2; ++rank) cluster.places.push_back({.rank = rank, .host = "host" + std::to_string(rank)});
  const HostsReport report = probe_hosts(cluster, hosts, "");
  REQUIRE(report.hosts.size() == 2);
  for (const HostFacts& facts : report.hosts) {
    CHECK(facts.fault.empty());
    CHECK(facts.cores == 0);
    CHECK(facts.memory_bytes == 2);
  }
  REQUIRE(report.links.size() == 2);
  CHECK(report.links[0].fault.empty());
  CHECK(report.links[0].latency_seconds == 0);
  CHECK(report.links[0].bytes_per_second == 1.5);
}
