// Tests how CPU quotas and counts of out-of-memory kills are read from simulated control groups.
#include "launcher/control_group.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

struct Host {
  Scratch scratch;
  std::string sys = scratch.path() + "/cgroup", proc = scratch.path() + "/proc";

  explicit Host(const std::string& groups) { write("proc/self/cgroup", groups); }
  void write(const std::string& path, const std::string& text) const {
    const std::string full = scratch.path() + "/" + path;
    std::filesystem::create_directories(std::filesystem::path(full).parent_path());
    std::ofstream(full) << text;
  }
};

}  // namespace

TEST_CASE("the smallest CPU quota of the group and its ancestors counts") {
  const Host host("0::/slice/job\n");
  CHECK(quota_cores(host.sys, host.proc) == 0);
  host.write("cgroup/slice/job/cpu.max", "max 100000\n");
  CHECK(quota_cores(host.sys, host.proc) == 0);
  host.write("cgroup/slice/cpu.max", "250000 100000\n");
  CHECK(quota_cores(host.sys, host.proc) == 2.5);
  host.write("cgroup/slice/job/cpu.max", "800000 100000\n");
  CHECK(quota_cores(host.sys, host.proc) == 2.5);
}

TEST_CASE("a quota of control groups v1 counts as well, and -1 means no quota") {
  const Host host("5:cpu,cpuacct:/docker/ab12\n4:memory:/docker/ab12\n");
  host.write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  host.write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(quota_cores(host.sys, host.proc) == 0);
  host.write("cgroup/cpu/cpu.cfs_quota_us", "150000\n");  // a container sees its own group as the root
  CHECK(quota_cores(host.sys, host.proc) == 1.5);
}

TEST_CASE("out-of-memory kills are counted by the process's group, v2 or v1, else by the host") {
  const Host host("4:memory:/a/b\n0::/c\n");
  CHECK(out_of_memory_kills(host.sys, host.proc) == -1);
  host.write("proc/vmstat", "nr_free_pages 3\noom_kill 7\n");
  CHECK(out_of_memory_kills(host.sys, host.proc) == 7);
  host.write("cgroup/memory/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  CHECK(out_of_memory_kills(host.sys, host.proc) == 2);
  host.write("cgroup/c/memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n");
  CHECK(out_of_memory_kills(host.sys, host.proc) == 1);
}
