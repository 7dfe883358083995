// Tests of spot notices of clouds, and of the environments of PBS and LSF.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "launcher/clusters/queue_scripts.h"
#include "launcher/clusters/started_by.h"
#include "launcher/spot_watch.h"

using namespace trainctl;

TEST_CASE("a spot notice is read from the response of each cloud") {
  CHECK(spot_notice(SpotNotices::aws, R"({"action": "terminate", "time": "2026-11-29T17:02:00Z"})") ==
        "terminate at 2026-11-29T17:02:00Z");
  CHECK(spot_notice(SpotNotices::aws, "<html>") == "");
  CHECK(spot_notice(SpotNotices::gcp, "FALSE") == "");
  CHECK(spot_notice(SpotNotices::gcp, "TRUE\n") == "preempted");
  const char* events = R"({"DocumentIncarnation": 2, "Events": [
      {"EventType": "Reboot", "Resources": ["vm_1"], "NotBefore": ""},
      {"EventType": "Preempt", "Resources": ["vm_0"], "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT"}]})";
  CHECK(spot_notice(SpotNotices::azure, events, "vm_0") == "Preempt not before Mon, 19 Sep 2026 18:29:47 GMT");
  CHECK(spot_notice(SpotNotices::azure, events, "vm_1") == "");
  CHECK(spot_notice(SpotNotices::azure, events) != "");  // a host without a name takes every event for its own
  CHECK(spot_notice(SpotNotices::azure, R"({"Events": []})", "vm_0") == "");
}

TEST_CASE("time limits of PBS are seconds or hours, minutes and seconds") {
  CHECK(clusters::pbs_seconds("90") == 90);
  CHECK(clusters::pbs_seconds("1:30") == 90);
  CHECK(clusters::pbs_seconds("2:00:05") == 7205);
  CHECK(clusters::pbs_seconds("") == 0);
  CHECK(clusters::pbs_seconds("1h") == 0);
  CHECK(clusters::pbs_seconds("1:2:3:4") == 0);
}

TEST_CASE("PBS and LSF name the hosts of a job, one per slot") {
  std::string folder = (std::filesystem::temp_directory_path() / "trainctl_test.XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string nodes = folder + "/nodes";
  std::ofstream(nodes) << "a\na\nb\n";
  const auto by = [](const std::map<std::string, std::string>& variables) {
    return clusters::started_by([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  const auto pbs = by({{"PBS_JOBID", "12.server"}, {"PBS_NODEFILE", nodes}});
  CHECK(pbs.manager == clusters::Manager::queue);
  CHECK(pbs.hosts == std::vector<std::string>{"a", "b"});
  CHECK(pbs.job.empty());  // a script of the user's may run several jobs
  CHECK(by({{"PBS_JOBID", "13"}, {"PBS_NODEFILE", nodes}, {"TRAINCTL_QUEUE_JOB", "12"}}).job == "12");
  const auto lsf = by({{"LSB_JOBID", "7"}, {"LSB_HOSTS", "c c d"}, {"TRAINCTL_QUEUE_JOB", "7.0"}});
  CHECK(lsf.name == "LSF");
  CHECK(lsf.hosts == std::vector<std::string>{"c", "d"});
  CHECK(by({{"LSB_JOBID", "7"}, {"LSB_DJOB_HOSTFILE", nodes}}).hosts == std::vector<std::string>{"a", "b"});
  CHECK_THROWS_AS(by({{"PBS_JOBID", "12"}, {"PBS_NODEFILE", folder + "/none"}}), EnvError);
  std::filesystem::remove_all(folder);
}
