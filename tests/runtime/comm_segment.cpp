// The segment: its checks, how groups are found, and what happens when it is full.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "engine/runtime/comm/segment.h"
#include "tests/runtime/comm_ranks.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

std::string attach_error(int fd) {
  try {
    SharedMemory::attach(fd);
  } catch (const EnvError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("what one mapping of a segment writes the other reads") {
  const auto one = SharedMemory::create({100, 5000, 0});
  const auto two = SharedMemory::attach(dup(one->fd()));
  CHECK(two->num_ranks() == 3);
  CHECK(two->arena(0).size() == 100);
  CHECK(two->arena(1).size() == 5000);
  CHECK(two->arena(2).empty());
  CHECK(two->arena(0).data() != one->arena(0).data());
  CHECK(two->status(2).instruction == -1);
  one->arena(1)[4999] = std::byte{7};
  one->status(2).loss = 2.5f;
  CHECK(two->arena(1)[4999] == std::byte{7});
  CHECK(two->status(2).loss == 2.5f);
}

TEST_CASE("arenas start zeroed, disjoint, and on cache lines of different sets") {
  const auto memory = SharedMemory::create({5000, 4096, 1});
  for (int rank = 0; rank < 3; ++rank) {
    const auto arena = memory->arena(rank);
    CHECK(reinterpret_cast<uintptr_t>(arena.data()) % 64 == 0);
    CHECK(std::all_of(arena.begin(), arena.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
  CHECK((memory->arena(1).data() - memory->arena(0).data()) % 4096 != 0);
  CHECK(memory->arena(0).data() + 5000 <= memory->arena(1).data());
  CHECK(memory->arena(1).data() + 4096 <= memory->arena(2).data());
}

TEST_CASE("a descriptor that is not a segment is refused with a reason") {
  CHECK(attach_error(-1).find("cannot open descriptor -1") != std::string::npos);
  CHECK(attach_error(open("/dev/null", O_RDWR)).find("is not a trainctl segment") != std::string::npos);
  const int zeros = memfd_create("zeros", 0);
  REQUIRE(ftruncate(zeros, 1 << 20) == 0);
  CHECK(attach_error(zeros).find("is not a trainctl segment") != std::string::npos);
}

TEST_CASE("a damaged header is refused before anything is trusted") {
  const auto damage = [](int64_t at, uint64_t value) {
    const auto memory = SharedMemory::create({4096, 4096});
    REQUIRE(pwrite(memory->fd(), &value, 8, at) == 8);
    return attach_error(dup(memory->fd()));
  };
  CHECK(damage(8, 0xffffffff00000003).find("version 3") != std::string::npos);
  CHECK(damage(8, 0xffffffff00000002).find("damaged") != std::string::npos);  // ranks
  CHECK(damage(16, 12345).find("damaged") != std::string::npos);              // total bytes
  CHECK(damage(4096, 1ull << 62).find("damaged") != std::string::npos);       // an arena
  CHECK(damage(4096, 1 << 20).find("damaged") != std::string::npos);
}

TEST_CASE("ranks that open the same groups in different orders at the same time find the same ones") {
  SharedMemoryTransport transport(8, 60, 4096);
  run_ranks(transport, [&](Communicator& comm, int rank) {
    std::vector<std::vector<int>> groups;
    for (int a = 0; a < 8; ++a) {
      for (int b = 0; b < 8; ++b) {
        if (a != b && (a == rank || b == rank)) groups.push_back({a, b});
      }
    }
    std::rotate(groups.begin(), groups.begin() + rank, groups.end());
    for (const auto& group : groups) comm.open_group(group);
    // In one order, so that the ranks do not wait in a circle.
    std::sort(groups.begin(), groups.end());
    auto* x = reinterpret_cast<int32_t*>(transport.arena(rank).data());
    for (const auto& group : groups) {
      *x = rank;
      comm.all_reduce(comm.open_group(group), x, x, 1, DType::i32);
      if (*x != group[0] + group[1]) throw std::runtime_error("met in the wrong group");
    }
  });
}

TEST_CASE("one more group than fits is an error that says so") {
  const auto memory = SharedMemory::create({64, 64, 64, 64, 64, 64, 64, 64, 64, 64});
  const auto comm = make_shared_memory_communicator(memory, 0, 1);
  std::vector<int> order = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::string text;
  // 362,880 orders of ten ranks, members for 6,553 of them, entries for 4,096.
  for (int made = 0; text.empty() && made < 10000; ++made) {
    std::vector<int> group = order;
    group.insert(group.begin(), 0);
    try {
      memory->segment().open_group(group);
    } catch (const EnvError& error) {
      text = error.what();
      CHECK(made == 4096);
    }
    std::next_permutation(order.begin(), order.end());
  }
  CHECK(text.find("more than 4096 groups") != std::string::npos);
}

TEST_CASE("large groups can use up the members before the groups, and the error says so") {
  const auto memory = SharedMemory::create(std::vector<int64_t>(64, 64));
  std::vector<int> order(64);
  for (int i = 0; i < 64; ++i) order[static_cast<size_t>(i)] = i;
  int made = 0;
  CHECK_THROWS_AS(
      [&] {
        for (;; ++made) {
          memory->segment().open_group(order);
          std::next_permutation(order.begin(), order.end());
        }
      }(),
      EnvError);
  CHECK(made == 1024);
  // Groups that existed before are still found.
  std::sort(order.begin(), order.end());
  CHECK_NOTHROW(memory->segment().open_group(order));
}
