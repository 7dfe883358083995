// Tests of the cores that ranks are bound to: on simulated hosts, on hosts described to hwloc, and on this host.
#include "launcher/binding.h"

#include <doctest/doctest.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "launcher/spawn.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
using Cpus = std::vector<int>;

namespace {

/// A host with `nodes` NUMA nodes of `cores` cores with two threads each. As Linux counts CPUs, thread 1 of core c is
/// CPU c + the number of all cores.
Topology with_threads(int nodes, int cores) {
  Topology topology;
  for (int thread = 0; thread < 2; ++thread) {
    for (int core = 0; core < nodes * cores; ++core) {
      topology.cpus.push_back({core + thread * nodes * cores, core, core / cores});
    }
  }
  return topology;
}

Topology plain(const Cpus& cpus) {
  Topology topology;
  for (const int cpu : cpus) topology.cpus.push_back({cpu, cpu, 0});
  return topology;
}

std::vector<RankBinding> bind_ranks(int ranks, const Topology& topology, BindMode mode) {
  return bindings(one_host(ranks), topology, mode);
}

std::vector<Cpus> cpus_of(const std::vector<RankBinding>& list) {
  std::vector<Cpus> cpus;
  for (const RankBinding& binding : list) cpus.push_back(binding.cpus);
  return cpus;
}

std::vector<int> threads_of(const std::vector<RankBinding>& list) {
  std::vector<int> threads;
  for (const RankBinding& binding : list) threads.push_back(binding.threads);
  return threads;
}

/// A host that hwloc makes of a description: "pack:2 [numa] core:8 pu:2" is two sockets, each of which is a NUMA node
/// of 8 cores with two threads each.
class DescribedHost {
 public:
  explicit DescribedHost(const char* description) {
    REQUIRE(hwloc_topology_init(&host_) == 0);
    REQUIRE(hwloc_topology_set_synthetic(host_, description) == 0);
    REQUIRE(hwloc_topology_load(host_) == 0);
  }
  ~DescribedHost() { hwloc_topology_destroy(host_); }
  DescribedHost(const DescribedHost&) = delete;
  DescribedHost& operator=(const DescribedHost&) = delete;

  void allow(const char* cpus) {
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    CHECK(hwloc_bitmap_list_sscanf(allowed, cpus) == 0);
    CHECK(hwloc_topology_restrict(host_, allowed, 0) == 0);
    hwloc_bitmap_free(allowed);
  }
  int nodes() const { return hwloc_get_nbobjs_by_type(host_, HWLOC_OBJ_NUMANODE); }
  Topology topology() const { return {trainctl::cpus_of(host_), 0}; }

 private:
  hwloc_topology_t host_ = nullptr;
};

}  // namespace

TEST_CASE("ranks that are not bound share all CPUs evenly") {
  const auto list = bind_ranks(3, with_threads(2, 8), BindMode::none);
  CHECK(cpus_of(list) == std::vector<Cpus>{{}, {}, {}});
  CHECK(threads_of(list) == std::vector<int>{10, 10, 10});
  CHECK(threads_of(bind_ranks(4, plain({0, 1}), BindMode::none)) == std::vector<int>{1, 1, 1, 1});
}

TEST_CASE("workers that are not bound share all CPUs, servers share all of them too, and bound ones have their own") {
  Topology topology = with_threads(2, 4);
  CHECK(threads_of(bindings(one_host(4, 2), topology, BindMode::none)) == std::vector<int>{4, 4, 4, 4, 8, 8});
  CHECK(threads_of(bindings(one_host(4, 4), topology, BindMode::core)) == std::vector<int>(8, 1));
  topology.quota_cores = 8;
  CHECK(threads_of(bindings(one_host(4, 2), topology, BindMode::none)) == std::vector<int>{2, 2, 2, 2, 4, 4});
}

TEST_CASE("core: equal runs of whole cores with both hardware threads, and one thread of work per core") {
  const auto list = bind_ranks(4, with_threads(2, 8), BindMode::core);
  CHECK(list[0].cpus == Cpus{0, 1, 2, 3, 16, 17, 18, 19});
  CHECK(list[3].cpus == Cpus{12, 13, 14, 15, 28, 29, 30, 31});
  CHECK(threads_of(list) == std::vector<int>{4, 4, 4, 4});
}

TEST_CASE("core: every core belongs to exactly one rank, whatever the numbers") {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    const auto list = bind_ranks(ranks, with_threads(2, 8), BindMode::core);
    Cpus all;
    for (const RankBinding& binding : list) all.insert(all.end(), binding.cpus.begin(), binding.cpus.end());
    std::sort(all.begin(), all.end());
    CHECK(all.size() == 32);
    CHECK(std::unique(all.begin(), all.end()) == all.end());
    const auto [least, most] = std::minmax_element(list.begin(), list.end(),
                                                   [](const auto& a, const auto& b) { return a.threads < b.threads; });
    CHECK(most->threads - least->threads <= 1);
  }
}

TEST_CASE("core: with more ranks than cores each gets a hardware thread, and with even more they share these") {
  CHECK(cpus_of(bind_ranks(4, with_threads(1, 2), BindMode::core)) == std::vector<Cpus>{{0}, {2}, {1}, {3}});
  const auto one_core = bind_ranks(3, plain({5}), BindMode::core);
  CHECK(cpus_of(one_core) == std::vector<Cpus>{{5}, {5}, {5}});
  CHECK(threads_of(one_core) == std::vector<int>{1, 1, 1});
  const auto eight_on_two = bind_ranks(8, plain({0, 1}), BindMode::core);
  CHECK(cpus_of(eight_on_two) == std::vector<Cpus>{{0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}});
}

TEST_CASE("core: no rank gets a CPU that the process may not use") {
  CHECK(cpus_of(bind_ranks(2, plain({1, 3, 4, 9}), BindMode::core)) == std::vector<Cpus>{{1, 3}, {4, 9}});
}

TEST_CASE("numa: each rank has all cores of its node, and its part of them as threads") {
  const auto list = bind_ranks(4, with_threads(2, 8), BindMode::numa);
  CHECK(list[0].cpus == list[1].cpus);
  CHECK(list[2].cpus == list[3].cpus);
  CHECK(list[0].cpus == Cpus{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(list[2].cpus.front() == 8);
  CHECK(threads_of(list) == std::vector<int>{4, 4, 4, 4});
}

TEST_CASE("numa: one rank on two nodes has both, and of three ranks on two nodes one has a node to itself") {
  CHECK(bind_ranks(1, with_threads(2, 8), BindMode::numa)[0].cpus.size() == 32);
  CHECK(threads_of(bind_ranks(1, with_threads(2, 8), BindMode::numa)) == std::vector<int>{16});
  CHECK(threads_of(bind_ranks(3, with_threads(2, 8), BindMode::numa)) == std::vector<int>{8, 4, 4});
}

TEST_CASE("numa: a node with more cores has more ranks") {
  Topology topology;
  for (int cpu = 0; cpu < 8; ++cpu) topology.cpus.push_back({cpu, cpu, cpu < 2 ? 0 : 1});
  const auto list = bind_ranks(4, topology, BindMode::numa);
  CHECK(list[0].cpus == Cpus{0, 1});
  for (const int rank : {1, 2, 3}) CHECK(list[static_cast<size_t>(rank)].cpus == Cpus{2, 3, 4, 5, 6, 7});
  CHECK(threads_of(list) == std::vector<int>{2, 2, 2, 2});
}

TEST_CASE("a CPU quota limits the number of threads, but not the CPUs on which they run") {
  Topology topology = with_threads(1, 8);
  topology.quota_cores = 3.5;
  const auto list = bind_ranks(2, topology, BindMode::core);
  CHECK(list[0].cpus.size() == 8);
  CHECK(threads_of(list) == std::vector<int>{2, 2});
  CHECK(threads_of(bind_ranks(8, topology, BindMode::none)) == std::vector<int>(8, 1));
}

TEST_CASE("two sockets with two threads a core: ranks get whole cores, those of a socket next to each other") {
  // Linux numbers the CPUs in this order: first thread 0 of each core, then thread 1 of each core.
  const DescribedHost host("pack:2 [numa] core:8 pu:2(indexes=2*16:16*1)");
  const auto list = bind_ranks(4, host.topology(), BindMode::core);
  CHECK(cpus_of(list) == cpus_of(bind_ranks(4, with_threads(2, 8), BindMode::core)));
  CHECK(describe(list[0]) == "CPUs 0-3,16-19");
  CHECK(threads_of(list) == std::vector<int>{4, 4, 4, 4});
  CHECK(describe(bind_ranks(2, host.topology(), BindMode::numa)[1]) == "CPUs 8-15,24-31");
}

TEST_CASE("all of a host's 2,048 cores are used") {
  const DescribedHost host("pack:16 [numa] core:128 pu:2");
  const auto list = bind_ranks(64, host.topology(), BindMode::core);
  CHECK(describe(list[0]) == "CPUs 0-63");
  CHECK(describe(list[63]) == "CPUs 4032-4095");
  CHECK(threads_of(list) == std::vector<int>(64, 32));
  CHECK(describe(bind_ranks(16, host.topology(), BindMode::numa)[15]) == "CPUs 3840-4095");
  CHECK(describe(bind_ranks(2048, host.topology(), BindMode::core)[2047]) == "CPUs 4094-4095");
}

TEST_CASE("no rank gets a CPU that a control group forbids, or a core without an allowed CPU") {
  DescribedHost host("pack:2 [numa] core:4 pu:2");
  host.allow("1-5,11");
  const auto list = bind_ranks(2, host.topology(), BindMode::core);
  CHECK(cpus_of(list) == std::vector<Cpus>{{1, 2, 3}, {4, 5, 11}});
  CHECK(threads_of(list) == std::vector<int>{2, 2});
  CHECK(cpus_of(bind_ranks(2, host.topology(), BindMode::numa)) == std::vector<Cpus>{{1, 2, 3, 4, 5}, {11}});
}

TEST_CASE("numa: a node without CPUs gets no rank") {
  DescribedHost emptied("pack:3 [numa] core:4 pu:1");  // hwloc keeps a node whose CPUs are forbidden
  emptied.allow("0-3,8-11");
  CHECK(emptied.nodes() == 3);
  CHECK(cpus_of(bind_ranks(2, emptied.topology(), BindMode::numa)) == std::vector<Cpus>{{0, 1, 2, 3}, {8, 9, 10, 11}});
  CHECK(threads_of(bind_ranks(3, emptied.topology(), BindMode::numa)) == std::vector<int>{4, 2, 2});

  const DescribedHost memory_alone("[numa] pack:2 [numa] core:4 pu:1");  // one that is as near to all CPUs
  CHECK(memory_alone.nodes() == 3);
  CHECK(cpus_of(bind_ranks(2, memory_alone.topology(), BindMode::numa)) ==
        std::vector<Cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}});
}

TEST_CASE("cores that share a cache go to one rank, however they are numbered") {
  const DescribedHost host("pack:1 [numa] l3:4 core:2 pu:1(indexes=0,4,1,5,2,6,3,7)");
  CHECK(cpus_of(bind_ranks(4, host.topology(), BindMode::core)) == std::vector<Cpus>{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
}

TEST_CASE("this host's topology has each CPU of our mask once, and no other") {
  const Topology all = read_topology();
  REQUIRE_FALSE(all.cpus.empty());
  std::set<int> ids;
  for (const Cpu& cpu : all.cpus) CHECK(ids.insert(cpu.id).second);
  CHECK(std::getenv("HWLOC_PLUGINS_PATH") == nullptr);

  Topology restricted;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(all.cpus.back().id, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) restricted = read_topology();
  }).join();
  REQUIRE(restricted.cpus.size() == 1);
  CHECK(restricted.cpus[0].id == all.cpus.back().id);
  CHECK(restricted.cpus[0].node == all.cpus.back().node);
}

TEST_CASE("a process can be bound to CPUs above 1,024") {
  const Scratch scratch;
  const std::string file = scratch.path() + "/status";
  const int cpu = read_topology().cpus.front().id;
  PosixProcessRunner runner;
  ProcessCommand command;
  command.argv = {"sh", "-c",
                  "grep Cpus_allowed_list /proc/self/status > " + file + ".part; mv " + file + ".part " + file};
  command.cpus = {cpu, 2047, 5000};  // the kernel ignores CPUs that do not exist
  runner.start(command);
  REQUIRE(eventually([&] { return std::filesystem::exists(file); }));
  CHECK(slurp(file) == "Cpus_allowed_list:\t" + std::to_string(cpu) + "\n");
}

TEST_CASE("a binding is printed as ranges") {
  CHECK(describe(RankBinding{{0, 1, 2, 8}, 3}) == "CPUs 0-2,8");
  CHECK(describe(RankBinding{{4}, 1}) == "CPU 4");
  CHECK(describe(RankBinding{}) == "not bound");
}
