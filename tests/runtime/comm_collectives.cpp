// Tests every collective over every transport, compared bit for bit with a direct computation.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "tests/runtime/comm_expected.h"
#include "tests/runtime/comm_ranks.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr double kPatience = 60;  // seconds: sanitizers on a busy machine are slow

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

TEST_CASE("every collective gives each rank the same bits as adding in group order") {
  const std::vector<std::vector<int>> groups = {
      {3}, {5, 1}, {2, 0, 7}, {4, 6, 0, 3}, {1, 5, 2, 6, 7, 0}, {7, 2, 5, 0, 1, 6, 3, 4}};
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const auto transport = kind.make(8, kPatience);
    run_ranks(*transport, [&](Communicator& comm, int rank) {
      auto* memory = reinterpret_cast<uint32_t*>(transport->arena(rank).data());
      comm.register_arena(memory, kTestArena);
      uint64_t salt = 0;
      for (const std::vector<int>& ranks : groups) {
        for (int op = 0; op < 6; ++op) {
          for (int64_t count : {1, 7, 1023}) {
            for (DType dtype : {DType::f32, DType::i32}) {
              const Case c{.op = static_cast<Op>(op),
                           .ranks = ranks,
                           .count = op == 5 ? 0 : count,
                           .dtype = dtype,
                           .root = static_cast<int>(ranks.size()) - 1,
                           .salt = ++salt,
                           .in_place = count != 7};
              if (contains(ranks, rank)) check_case(comm, c, memory);
            }
          }
        }
      }
    });
  }
}

TEST_CASE("any sequence of calls over any groups, from shared or own memory, is right") {
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const bool shared = kind.name == "shared memory";
    const uint64_t calls = shared ? 2500 : 150;
    const std::vector<int64_t> counts = {0, 1, 7, 64, 1023, 4096, 20011};
    const auto transport = kind.make(8, kPatience);
    std::atomic<int> checked = 0;
    run_ranks(*transport, [&](Communicator& comm, int rank) {
      auto* arena = reinterpret_cast<uint32_t*>(transport->arena(rank).data());
      std::vector<uint32_t> own(kTestArena / 4);
      for (uint64_t i = 0; i < calls; ++i) {
        const Case c = random_case(i, 8, counts);
        if (!contains(c.ranks, rank)) continue;
        // Each rank chooses independently whether it stages its data; the choice does not change the results of its
        // peers.
        const bool staged = (i * 7 + static_cast<uint64_t>(rank)) % 5 == 0;
        check_case(comm, c, staged ? own.data() : arena + i % 3);
        ++checked;
      }
    });
    CHECK(checked > static_cast<int>(calls));
  }
}

TEST_CASE("an all_to_all of counted rows moves the rows that each rank sends to each other one") {
  constexpr int64_t kRow = 5, kRowsOfBlock = 7, kBlock = kRow * kRowsOfBlock;
  const std::vector<int> ranks = {2, 0, 3};
  const auto size = static_cast<int64_t>(ranks.size());
  std::vector<int32_t> counts = {1, 0, 7, 3, 2, 0, 5, 4, 6};
  const auto number = [](int64_t from, int64_t to, int64_t i) {
    return static_cast<float>(10000 * from + 1000 * to + i);
  };
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const auto transport = kind.make(4, kPatience);
    run_ranks(*transport, [&](Communicator& comm, int rank) {
      auto* memory = reinterpret_cast<float*>(transport->arena(rank).data());
      comm.register_arena(memory, kTestArena);
      if (!contains(ranks, rank)) return;
      const int64_t me = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
      const int group = comm.open_group(ranks);
      for (const bool reversed : {false, true}) {
        const CountedRows rows{kRow, counts.data(), reversed};
        float *const in = memory, *const out = memory + size * kBlock;
        for (int64_t to = 0; to < size; ++to)
          for (int64_t i = 0; i < kBlock; ++i) in[to * kBlock + i] = number(me, to, i);
        std::fill_n(out, size * kBlock, -1.0f);
        comm.all_to_all_rows(group, in, out, kBlock, DType::f32, rows);
        bool right = true;
        for (int64_t from = 0; from < size; ++from)
          for (int64_t i = 0; i < rows.elements(size, from, me); ++i)
            right = right && out[from * kBlock + i] == number(from, me, i);
        CHECK(right);
      }
      const std::vector<int32_t> none(static_cast<size_t>(size * size));
      comm.all_to_all_rows(group, memory, memory + size * kBlock, kBlock, DType::f32, {kRow, none.data()});
    });
  }
}

TEST_CASE("groups without common ranks do not wait for each other") {
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const auto transport = kind.make(4, kPatience);
    run_ranks(*transport, [&](Communicator& comm, int rank) {
      auto* memory = reinterpret_cast<uint32_t*>(transport->arena(rank).data());
      const std::vector<int> ranks = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{3, 2};
      // The groups make different numbers of calls.
      for (uint64_t i = 0; i < (rank < 2 ? 20 : 50); ++i)
        check_case(comm, {.ranks = ranks, .count = 300, .salt = i}, memory);
      check_case(comm, {.ranks = {0, 1, 2, 3}, .count = 5, .salt = 99}, memory);
    });
  }
}

// A regression: Gloo waited until the timeout for a connection that could not be opened.
TEST_CASE("ranks over Gloo may have more groups than a process usually may have open files") {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{100, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  GlooTransport transport(4, kPatience, 4096);
  run_ranks(transport, [](Communicator& comm, int) {
    std::vector<int> ranks = {0, 1, 2, 3};
    do {
      comm.barrier(comm.open_group(ranks));
    } while (std::next_permutation(ranks.begin(), ranks.end()));
  });
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("more ranks than one pass sums are added in the same order") {
  std::vector<int> ranks(19);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i * 7 % 19);
  SharedMemoryTransport transport(19, kPatience, 1 << 20);
  run_ranks(transport, [&](Communicator& comm, int rank) {
    auto* memory = reinterpret_cast<uint32_t*>(transport.arena(rank).data());
    check_case(comm, {.ranks = ranks, .count = 5000, .salt = 1, .in_place = true}, memory);
    check_case(comm, {.op = Op::reduce_scatter, .ranks = ranks, .count = 1100, .dtype = DType::i32, .salt = 2}, memory);
  });
}

TEST_CASE("buffers outside the arena may be larger than the staging area") {
  constexpr int64_t count = 3 * 1000 * 1000 + 1;  // 12 MB in, 12 MB out, 8 MiB of staging
  SharedMemoryTransport transport(2, kPatience, 16 << 20);
  run_ranks(transport, [&](Communicator& comm, int rank) {
    std::vector<uint32_t> own(3 * count);
    for (Op op : {Op::all_reduce, Op::all_gather, Op::broadcast}) {
      check_case(comm, {.op = op, .ranks = {1, 0}, .count = count, .salt = 5}, own.data());
    }
    // The buffer of one rank is in the arena, that of the other rank is outside.
    auto* arena = reinterpret_cast<uint32_t*>(transport.arena(rank).data());
    const Case mixed{.ranks = {0, 1}, .count = count, .salt = 6, .in_place = true};
    check_case(comm, mixed, rank == 0 ? arena : own.data());
  });
}

TEST_CASE("bf16 is summed in f32 and rounded once, to nearest even") {
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const auto transport = kind.make(3, kPatience);
    std::vector<std::vector<uint16_t>> results(3);
    run_ranks(*transport, [&](Communicator& comm, int rank) {
      // 256 + 1 + 1: in bf16, which has 8 bits, 256 + 1 stays 256, but in f32 the sum is 258. 256 + 0.5 + 0.5: the sum
      // 257 is half way between 256 and 258, of which 256 is the even one.
      const std::vector<uint16_t> in =
          rank == 0 ? std::vector<uint16_t>{0x4380, 0x4380, 0x7fc0} : std::vector<uint16_t>{0x3f80, 0x3f00, 0x3f80};
      std::vector<uint16_t> out(3);
      comm.all_reduce(comm.open_group({0, 1, 2}), in.data(), out.data(), 3, DType::bf16);
      results[static_cast<size_t>(rank)] = out;
    });
    for (const auto& out : results) CHECK(out == std::vector<uint16_t>{0x4381, 0x4380, 0x7fc0});
  }
}

TEST_CASE("all members that meet with different calls get an error that names the odd ones") {
  SharedMemoryTransport transport(3, kPatience, 4096);
  bool other_step = false;
  SUBCASE("another count") {}
  SUBCASE("the same call of another step: it has left one out") { other_step = true; }
  std::vector<std::vector<int>> missing(3, {-1});
  run_ranks(transport, [&](Communicator& comm, int rank) {
    auto* memory = reinterpret_cast<float*>(transport.arena(rank).data());
    const int group = comm.open_group({0, 1, 2});
    comm.set_position({rank == 1 && other_step ? 8U : 7U, 3});
    try {
      comm.all_reduce(group, memory, memory, rank == 1 && !other_step ? 5 : 6, DType::f32);
    } catch (const CommError& error) {
      missing[static_cast<size_t>(rank)] = error.missing;
      CHECK(std::string(error.what())
                .find("most ranks call all_reduce of 6 f32 at step 7; rank 1 calls all_reduce of ") !=
            std::string::npos);
    }
  });
  CHECK(missing == std::vector<std::vector<int>>{{1}, {}, {1}});
}
