// Tests communication between ranks on several hosts: a shared-memory segment per host, Gloo between hosts.
#include <algorithm>
#include <atomic>
#include <map>
#include <stdexcept>

#include "engine/compile/report/host_traffic.h"
#include "engine/runtime/comm/board_changes.h"
#include "engine/runtime/comm/counted_communicator.h"
#include "engine/runtime/comm/hosts_communicator.h"
#include "tests/runtime/comm_expected.h"
#include "tests/runtime/comm_ranks.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr double kCommHostsPatience = 60;

/// A transport between hosts. `host_of` has the number of each rank's host. Each host's segment has the statuses of all
/// ranks, but only the arenas of the ranks of that host.
class HostsTransport : public Transport {
 public:
  HostsTransport(std::vector<int> host_of, double timeout_seconds)
      : host_of_(std::move(host_of)), timeout_(timeout_seconds) {
    std::signal(SIGPIPE, SIG_IGN);
    const int hosts = *std::max_element(host_of_.begin(), host_of_.end()) + 1;
    for (int host = 0; host < hosts; ++host) {
      std::vector<int64_t> arenas;
      std::vector<Route> routes;
      for (const Route& route : all_routes(num_ranks()))
        if (of(route.from) == host && of(route.to) == host) routes.push_back(route);
      for (const int its : host_of_) arenas.push_back(its == host ? kTestArena : 0);
      memories.push_back(SharedMemory::create(arenas, routes));
    }
  }
  std::unique_ptr<Communicator> connect(int rank) override {
    return make_hosts_communicator(
        make_counted_communicator(make_shared_memory_communicator(memory_of(rank), rank, timeout_), within),
        make_counted_communicator(
            make_gloo_communicator(store, rank, num_ranks(),
                                   {.timeout_seconds = timeout_, .connect_seconds = kCommHostsPatience}),
            between),
        host_of_);
  }
  std::span<std::byte> arena(int rank) override { return memory_of(rank)->arena(rank); }
  int num_ranks() const override { return static_cast<int>(host_of_.size()); }
  std::shared_ptr<SharedMemory> memory_of(int rank) { return memories[static_cast<size_t>(of(rank))]; }

  InMemoryStore store;
  std::vector<std::shared_ptr<SharedMemory>> memories;
  std::atomic<int64_t> within = 0, between = 0;  ///< bytes

 private:
  int of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  std::vector<int> host_of_;
  double timeout_;
};

const std::vector<std::vector<int>> kLayouts = {
    {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 1, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 0, 1, 0, 1, 0, 1}};

bool comm_hosts_contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

TEST_CASE("hosts: every collective gives the same result across hosts as on one host, for any group") {
  const std::vector<std::vector<int>> groups = {
      {3}, {5, 1}, {2, 0, 7}, {4, 6, 0, 3}, {1, 5, 2, 6, 7, 0}, {7, 2, 5, 0, 1, 6, 3, 4}};
  for (const std::vector<int>& layout : kLayouts) {
    CAPTURE(layout);
    HostsTransport transport(layout, kCommHostsPatience);
    run_ranks(transport, [&](Communicator& comm, int rank) {
      auto* memory = reinterpret_cast<uint32_t*>(transport.arena(rank).data());
      uint64_t salt = 0;
      for (const std::vector<int>& ranks : groups)
        for (int op = 0; op < 6; ++op)
          for (int64_t count : {1, 7, 1023}) {
            const Case c{.op = static_cast<Op>(op),
                         .ranks = ranks,
                         .count = op == 5 ? 0 : count,
                         .dtype = DType::i32,  // its sums are the same in any order
                         .root = static_cast<int>(ranks.size()) - 1,
                         .salt = ++salt,
                         .in_place = count != 7};
            if (comm_hosts_contains(ranks, rank)) check_case(comm, c, memory);
          }
    });
  }
}

TEST_CASE("hosts: a call moves as many bytes within and between hosts as the plan states") {
  const std::vector<std::vector<int>> groups = {{3}, {5, 1}, {2, 0, 7}, {1, 5, 2, 6, 7, 0}, {7, 2, 5, 0, 1, 6, 3, 4}};
  const std::vector<std::pair<Op, Collective>> kinds = {{Op::all_reduce, Collective::all_reduce},
                                                        {Op::all_gather, Collective::all_gather},
                                                        {Op::reduce_scatter, Collective::reduce_scatter},
                                                        {Op::all_to_all, Collective::all_to_all},
                                                        {Op::broadcast, Collective::broadcast}};
  for (const std::vector<int>& layout : kLayouts)
    for (const auto& [op, kind] : kinds) {
      CAPTURE(layout);
      CAPTURE(static_cast<int>(kind));
      HostsTransport transport(layout, kCommHostsPatience);
      HostTraffic planned;
      std::vector<Case> cases;
      for (const std::vector<int>& ranks : groups) {
        std::map<int, int> members;
        for (const int rank : ranks) ++members[layout[static_cast<size_t>(rank)]];
        std::vector<int> of_hosts;
        for (const auto& [host, number] : members) of_hosts.push_back(number);
        for (const int64_t count : {3, 1023, 2048}) {  // small counts are reduced by every member, large ones in slices
          cases.push_back({.op = op, .ranks = ranks, .count = count, .dtype = DType::i32});
          const HostTraffic one = traffic_of(kind, of_hosts, count, DType::i32);
          CHECK((one.between > 0) == (of_hosts.size() > 1));
          planned += one;
        }
      }
      run_ranks(transport, [&](Communicator& comm, int rank) {
        for (const Case& c : cases)
          if (comm_hosts_contains(c.ranks, rank))
            check_case(comm, c, reinterpret_cast<uint32_t*>(transport.arena(rank).data()));
      });
      CHECK(transport.within == planned.within);
      CHECK(transport.between == planned.between);
    }
}

TEST_CASE("hosts: an all_to_all of counted rows gives the rows of every pair and moves no others") {
  constexpr int64_t kRow = 3, kRows = 40, kBlock = kRow * kRows;
  const auto number = [](int64_t from, int64_t to, int64_t i) {
    return static_cast<float>(100000 * from + 1000 * to + i);
  };
  for (const std::vector<int>& layout : kLayouts)
    for (const std::vector<int>& ranks : std::vector<std::vector<int>>{{5, 1}, {2, 0, 7}, {7, 2, 5, 0, 1, 6, 3, 4}})
      for (const int kind : {0, 1, 2, 3}) {  // any counts, no rows, all rows of one member to one other, whole blocks
        CAPTURE(layout);
        CAPTURE(ranks);
        CAPTURE(kind);
        const auto p = static_cast<int64_t>(ranks.size());
        std::vector<int32_t> counts(static_cast<size_t>(p * p));
        for (size_t i = 0; i < counts.size() && kind == 0; ++i) counts[i] = static_cast<int32_t>(i * i * 7 % 41);
        if (kind == 2) counts[1] = kRows;
        if (kind == 3) counts.assign(counts.size(), kRows);
        HostsTransport transport(layout, kCommHostsPatience);
        std::atomic<bool> is_right = true;
        run_ranks(transport, [&](Communicator& comm, int rank) {
          if (!comm_hosts_contains(ranks, rank)) return;
          const int64_t me = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
          const int group = comm.open_group(ranks);
          for (const bool reversed : {false, true}) {
            const CountedRows rows{kRow, counts.data(), reversed};
            std::vector<float> in(static_cast<size_t>(p * kBlock)), out(in.size(), -1.0f);
            for (int64_t to = 0; to < p; ++to)
              for (int64_t i = 0; i < kBlock; ++i) in[static_cast<size_t>(to * kBlock + i)] = number(me, to, i);
            comm.all_to_all_rows(group, in.data(), out.data(), kBlock, DType::f32, rows);
            for (int64_t from = 0; from < p; ++from)
              for (int64_t i = 0; i < rows.elements(p, from, me); ++i)
                if (out[static_cast<size_t>(from * kBlock + i)] != number(from, me, i)) is_right = false;
          }
        });
        CHECK(is_right);
        int64_t between = 0;
        for (int64_t from = 0; from < p; ++from)
          for (int64_t to = 0; to < p; ++to)
            if (layout[static_cast<size_t>(ranks[static_cast<size_t>(from)])] !=
                layout[static_cast<size_t>(ranks[static_cast<size_t>(to)])])
              between += 2 * counts[static_cast<size_t>(from * p + to)] * kRow * byte_size(DType::f32);
        CHECK(transport.between == between);
        if (kind != 3) continue;
        std::map<int, int> members;
        for (const int rank : ranks) ++members[layout[static_cast<size_t>(rank)]];
        std::vector<int> of_hosts;
        for (const auto& [host, of_host] : members) of_hosts.push_back(of_host);
        const HostTraffic planned = traffic_of_rows(of_hosts, 2 * kBlock, DType::f32, 1);
        CHECK(transport.within == planned.within);
        CHECK(transport.between == planned.between);
      }
}

TEST_CASE("hosts: a sum of floats has the same bits on every rank, and in every run") {
  constexpr int64_t kCount = 5000;
  std::vector<std::vector<float>> sums(8), again(8);
  for (auto* results : {&sums, &again}) {
    HostsTransport transport({0, 0, 0, 1, 1, 1, 1, 2}, kCommHostsPatience);
    run_ranks(transport, [&](Communicator& comm, int rank) {
      std::vector<float> values(kCount);
      for (int64_t i = 0; i < kCount; ++i) values[static_cast<size_t>(i)] = 1.0f / static_cast<float>(1 + rank + i * 8);
      const int group = comm.open_group({0, 1, 2, 3, 4, 5, 6, 7});
      comm.all_reduce(group, values.data(), values.data(), kCount, DType::f32);
      (*results)[static_cast<size_t>(rank)] = values;
    });
  }
  for (int64_t i = 0; i < kCount; ++i) {
    double expected = 0;
    for (int rank = 0; rank < 8; ++rank) expected += 1.0 / static_cast<double>(1 + rank + i * 8);
    CHECK(static_cast<double>(sums[0][static_cast<size_t>(i)]) == doctest::Approx(expected).epsilon(1e-6));
  }
  for (size_t rank = 0; rank < 8; ++rank) {
    CHECK(sums[rank] == sums[0]);
    CHECK(again[rank] == sums[0]);
  }
}

TEST_CASE("hosts: messages go within a host and between hosts, in order") {
  HostsTransport transport({0, 0, 1, 1}, kCommHostsPatience);
  run_ranks(transport, [&](Communicator& comm, int rank) {
    for (int round = 0; round < 20; ++round)
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == rank) continue;
        int64_t sent = rank * 1000 + peer * 100 + round, got = 0;
        const int64_t sequence = comm.send(peer, &sent, sizeof sent);
        comm.recv(peer, &got, sizeof got);
        comm.wait_send(peer, sequence);
        if (got != peer * 1000 + rank * 100 + round) throw std::runtime_error("another message");
      }
  });
}

TEST_CASE("hosts: a rank that has failed on another host is named by those that wait for it") {
  HostsTransport transport({0, 0, 1, 1}, kCommHostsPatience);
  std::vector<std::string> errors(4);
  const auto body = [&](Communicator& comm, int rank) {
    const int group = comm.open_group({0, 1, 2, 3});
    comm.barrier(group);
    if (rank == 3) {
      for (const auto& memory : transport.memories)
        memory->status(3).state = RankState::failed;  // agents send each other such changes
      throw CommError("the end of rank 3");
    }
    try {
      float value = 1;
      comm.all_reduce(group, &value, &value, 1, DType::f32);
    } catch (const CommError& error) {
      errors[static_cast<size_t>(rank)] = error.what();
      throw;
    }
  };
  CHECK_THROWS_AS(run_ranks(transport, body), CommError);
  CHECK(errors[2].find("rank 3 has failed") != std::string::npos);
  CHECK(errors[1].find("rank 3 has failed") != std::string::npos);
}

TEST_CASE(
    "hosts: status changes are copied to the segment of another host, but only those of ranks on the sending host") {
  const auto here = SharedMemory::create({64, 64, 0}), there = SharedMemory::create({0, 0, 64});
  BoardChanges changes(*here, {0, 1});
  CHECK(apply_changes(changes.take(), {0, 1}, *there));
  CHECK(changes.take().empty());
  here->status(1).step = 17;
  here->status(1).state = RankState::training;
  here->status(1).loss = 0.5F;
  here->status(1).pid = 4711;
  const std::string changed = changes.take();
  CHECK_FALSE(apply_changes(changed, {0, 2}, *there));
  CHECK(there->status(1).step == 0);
  CHECK_FALSE(apply_changes(changed.substr(1), {0, 1}, *there));
  CHECK(apply_changes(changed, {0, 1}, *there));
  CHECK(there->status(1).step == 17);
  CHECK(there->status(1).loss == 0.5F);
  CHECK(there->status(1).pid == 0);
  there->status(1).state = RankState::failed;
  here->status(1).step = 18;
  CHECK(apply_changes(changes.take(), {0, 1}, *there));
  CHECK(there->status(1).state == RankState::failed);  // the launcher's state has priority
  CHECK(there->status(1).step == 18);
}

TEST_CASE("hosts: step gates that are held and then stopped let every rank of every host end after the same step") {
  StepGate a, b;
  for (uint64_t step = 1; step <= 5; ++step) REQUIRE(a.start(step));
  for (uint64_t step = 1; step <= 3; ++step) REQUIRE(b.start(step));
  std::thread waits;
  const uint64_t last = std::max(a.hold(), b.hold());
  CHECK(last == 5);
  std::vector<bool> started;
  waits = std::thread([&] {
    for (uint64_t step = 4; step <= 6; ++step) started.push_back(b.start(step));
  });
  a.stop_after(last);
  b.stop_after(last);
  waits.join();
  CHECK(started == std::vector<bool>{true, true, false});
  CHECK(a.start(5));
  CHECK_FALSE(a.start(6));
  CHECK(a.asked_to_stop());
  CHECK(b.highest() == 5);
}
