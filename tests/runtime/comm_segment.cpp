// Tests of the segment: its checks, how groups are found, and what happens when it is full.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "engine/base/round_up.h"
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
    const auto memory = SharedMemory::create({4096, 4096}, {{0, 1}, {1, 0}});
    REQUIRE(pwrite(memory->fd(), &value, 8, at) == 8);
    return attach_error(dup(memory->fd()));
  };
  constexpr int64_t kPage = 4096;
  constexpr int64_t sizes = round_up(int64_t{sizeof(comm::Header)}, kPage), routes = sizes + kPage;
  CHECK(damage(8, 0xffffffff00000007).find("version 7") != std::string::npos);
  CHECK(damage(8, 0xffffffff00000006).find("damaged") != std::string::npos);  // ranks
  CHECK(damage(16, 12345).find("damaged") != std::string::npos);              // total bytes
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{4}, uint64_t{1} << 62, ~uint64_t{0}}) {
    CHECK(damage(24, count).find("damaged") != std::string::npos);
  }
  CHECK(damage(routes, 5).find("damaged") != std::string::npos);  // from rank 5
  CHECK(damage(routes, 0xffffffffull << 32).find("damaged") != std::string::npos);
  CHECK(damage(routes, 1).find("damaged") != std::string::npos);          // twice the same
  CHECK(damage(sizes, 1ull << 62).find("damaged") != std::string::npos);  // an arena
  CHECK(damage(sizes, 1 << 20).find("damaged") != std::string::npos);
}

TEST_CASE("a segment grows with the routes of messages, not with all pairs of ranks") {
  const auto bytes = [](int ranks, const std::vector<Route>& routes) {
    return SharedMemory::create(std::vector<int64_t>(static_cast<size_t>(ranks), 4096), routes)->bytes();
  };
  constexpr int64_t kPage = 4096;
  constexpr int64_t channel = static_cast<int64_t>(sizeof(comm::Channel) + sizeof(Route));
  for (const int ranks : {8, 64, 256}) {
    const int64_t of_ring = bytes(ranks, ring_routes(ranks)) - bytes(ranks, {});
    CHECK(of_ring >= ranks * (channel + comm::Segment::kSendStaging));
    CHECK(of_ring <= ranks * (channel + comm::Segment::kSendStaging) + 2 * kPage);
  }
  // A ring with twice the ranks needs at most twice the bytes.
  for (const int ranks : {8, 64, 256})
    CHECK(bytes(2 * ranks, ring_routes(2 * ranks)) <= 2 * bytes(ranks, ring_routes(ranks)));
  // A rank that sends to many other ranks still has one staging area.
  CHECK(bytes(64, {{0, 1}, {0, 2}, {0, 3}}) - bytes(64, {{0, 1}}) <= 2 * channel + 2 * kPage);
  CHECK(bytes(4, {{1, 2}, {0, 1}, {1, 2}}) == bytes(4, {{0, 1}, {1, 2}}));
}

TEST_CASE("ranks that connect and meet touch no memory but what they use") {
  const auto touched = [](const SharedMemory& memory) {
    struct stat info {};
    REQUIRE(fstat(memory.fd(), &info) == 0);
    return int64_t{info.st_blocks} * 512;
  };
  const auto memory = SharedMemory::create(std::vector<int64_t>(64, 1 << 20), ring_routes(64));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < 64; ++rank) ranks.push_back(make_shared_memory_communicator(memory, rank, 60));
  std::vector<int> everyone(64);
  std::iota(everyone.begin(), everyone.end(), 0);
  for (const auto& rank : ranks) rank->open_group(everyone);
  CHECK(touched(*memory) <= 64 * 8192 + (64 << 10));  // a page or two of each rank's channel, and the tables
}

TEST_CASE("a message on a route that the segment was not made with is our bug, and says which") {
  const auto memory = SharedMemory::create({64, 64, 64}, {{0, 1}, {1, 0}, {2, 0}});
  const auto comm = make_shared_memory_communicator(memory, 0, 1);
  char data[4] = {};
  CHECK_THROWS_WITH_AS(comm->send(2, data, 4), doctest::Contains("rank 0 has a send to rank 2 without one"),
                       InternalError);
  CHECK_THROWS_WITH_AS(comm->recv(0, data, 4), doctest::Contains("rank 0 has a recv from rank 0 without one"),
                       InternalError);
  CHECK(comm->send(1, data, 4) == 1);
}

TEST_CASE("more ranks than a segment is for are refused with the number that it is for") {
  CHECK_THROWS_WITH_AS(SharedMemory::create(std::vector<int64_t>(4097, 0)), doctest::Contains("at most 4096 ranks"),
                       EnvError);
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
    // The ranks take the groups in the same order, so that they do not wait for each other in a circle.
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
  // Ten ranks can be ordered in 362,880 ways. The segment has room for the members of 6,553 groups and for 4,096
  // entries.
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
