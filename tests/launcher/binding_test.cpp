// Cores for ranks, on hosts that are made up.
#include "launcher/binding.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/launcher/scratch.h"

using namespace trainctl;
using Cpus = std::vector<int>;

namespace {

/// `nodes` x `cores` cores with two threads each; thread 1 of core c is CPU c + all cores, as Linux counts them.
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

std::vector<RankBinding> bind(int ranks, const Topology& topology, BindMode mode) {
  return bindings(one_host(ranks).places, topology, mode);
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

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("ranks that are not bound share all CPUs evenly") {
  const auto list = bind(3, with_threads(2, 8), BindMode::none);
  CHECK(cpus_of(list) == std::vector<Cpus>{{}, {}, {}});
  CHECK(threads_of(list) == std::vector<int>{10, 10, 10});
  CHECK(threads_of(bind(4, plain({0, 1}), BindMode::none)) == std::vector<int>{1, 1, 1, 1});
}

TEST_CASE("core: equal runs of whole cores, both threads of each, a thread of work a core") {
  const auto list = bind(4, with_threads(2, 8), BindMode::core);
  CHECK(list[0].cpus == Cpus{0, 1, 2, 3, 16, 17, 18, 19});
  CHECK(list[3].cpus == Cpus{12, 13, 14, 15, 28, 29, 30, 31});
  CHECK(threads_of(list) == std::vector<int>{4, 4, 4, 4});
}

TEST_CASE("core: every core is somebody's and nobody's twice, whatever the numbers") {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    const auto list = bind(ranks, with_threads(2, 8), BindMode::core);
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

TEST_CASE("core: more ranks than cores get a core's thread each, and share these when there are more still") {
  CHECK(cpus_of(bind(4, with_threads(1, 2), BindMode::core)) == std::vector<Cpus>{{0}, {2}, {1}, {3}});
  const auto one_core = bind(3, plain({5}), BindMode::core);
  CHECK(cpus_of(one_core) == std::vector<Cpus>{{5}, {5}, {5}});
  CHECK(threads_of(one_core) == std::vector<int>{1, 1, 1});
  const auto eight_on_two = bind(8, plain({0, 1}), BindMode::core);
  CHECK(cpus_of(eight_on_two) == std::vector<Cpus>{{0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}});
}

TEST_CASE("core: CPUs that the process may not use are nobody's") {
  CHECK(cpus_of(bind(2, plain({1, 3, 4, 9}), BindMode::core)) == std::vector<Cpus>{{1, 3}, {4, 9}});
}

TEST_CASE("numa: each rank has its node, and its part of the node's cores as threads") {
  const auto list = bind(4, with_threads(2, 8), BindMode::numa);
  CHECK(list[0].cpus == list[1].cpus);
  CHECK(list[2].cpus == list[3].cpus);
  CHECK(list[0].cpus == Cpus{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(list[2].cpus.front() == 8);
  CHECK(threads_of(list) == std::vector<int>{4, 4, 4, 4});
}

TEST_CASE("numa: one rank on two nodes has both, and of three on two nodes one has a node for itself") {
  CHECK(bind(1, with_threads(2, 8), BindMode::numa)[0].cpus.size() == 32);
  CHECK(threads_of(bind(1, with_threads(2, 8), BindMode::numa)) == std::vector<int>{16});
  CHECK(threads_of(bind(3, with_threads(2, 8), BindMode::numa)) == std::vector<int>{8, 4, 4});
}

TEST_CASE("numa: a node with more cores has more ranks") {
  Topology topology;
  for (int cpu = 0; cpu < 8; ++cpu) topology.cpus.push_back({cpu, cpu, cpu < 2 ? 0 : 1});
  const auto list = bind(4, topology, BindMode::numa);
  CHECK(list[0].cpus == Cpus{0, 1});
  for (const int rank : {1, 2, 3}) CHECK(list[static_cast<size_t>(rank)].cpus == Cpus{2, 3, 4, 5, 6, 7});
  CHECK(threads_of(list) == std::vector<int>{2, 2, 2, 2});
}

TEST_CASE("a CPU quota limits threads, not where they run") {
  Topology topology = with_threads(1, 8);
  topology.quota_cores = 3.5;
  const auto list = bind(2, topology, BindMode::core);
  CHECK(list[0].cpus.size() == 8);
  CHECK(threads_of(list) == std::vector<int>{2, 2});
  CHECK(threads_of(bind(8, topology, BindMode::none)) == std::vector<int>(8, 1));
}

TEST_CASE("the kernel's description is read: siblings share a core, and nodes have their CPUs") {
  const Scratch scratch;
  const Topology real = read_topology();
  REQUIRE_FALSE(real.cpus.empty());
  const int cpu = real.cpus[0].id;
  const std::string id = std::to_string(cpu);
  write(scratch.path() + "/cpu/cpu" + id + "/topology/thread_siblings_list", id + "," + std::to_string(cpu + 64));
  std::filesystem::create_directories(scratch.path() + "/node/node3/cpu" + id);
  std::filesystem::create_directories(scratch.path() + "/node/node3/cpufreq");
  std::filesystem::create_directories(scratch.path() + "/node/power");
  const Topology read = read_topology(scratch.path());
  REQUIRE(read.cpus.size() == real.cpus.size());
  CHECK(read.cpus[0].id == cpu);
  CHECK(read.cpus[0].core == cpu);
  CHECK(read.cpus[0].node == 3);
  for (size_t i = 1; i < read.cpus.size(); ++i) CHECK(read.cpus[i].node == 0);
}

TEST_CASE("a binding is said in runs") {
  CHECK(describe(RankBinding{{0, 1, 2, 8}, 3}) == "CPUs 0-2,8");
  CHECK(describe(RankBinding{{4}, 1}) == "CPU 4");
  CHECK(describe(RankBinding{}) == "not bound");
}
