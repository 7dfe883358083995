// Tests that a call that cannot end names the ranks that it waits for, and where these ranks are.
#include <atomic>
#include <optional>
#include <thread>

#include "engine/runtime/comm/segment.h"
#include "tests/runtime/comm_ranks.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// The error that `rank` gets from `blocking`; all others run `elsewhere` and then stay until it has the error.
CommError error_of(Transport& transport, int rank, const std::function<void(Communicator&)>& blocking,
                   const std::function<void(Communicator&, int)>& elsewhere) {
  std::optional<CommError> result;
  std::atomic<bool> over = false;
  run_ranks(transport, [&](Communicator& comm, int me) {
    if (me != rank) {
      elsewhere(comm, me);
      over.wait(false);
      return;
    }
    try {
      blocking(comm);
    } catch (const CommError& error) {
      result = error;
    }
    over = true;
    over.notify_all();
  });
  REQUIRE(result);
  return *result;
}

bool says(const CommError& error, std::string_view part) {
  const bool found = std::string_view(error.what()).find(part) != std::string_view::npos;
  if (!found) MESSAGE("the text is: " << std::string(error.what()));
  return found;
}

void nothing(Communicator&, int) {}

}  // namespace

TEST_CASE("a collective that times out names the missing rank and its position") {
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const auto transport = kind.make(2, 0.3);
    std::atomic<bool> positioned = false;
    const CommError error = error_of(
        *transport, 0,
        [&](Communicator& comm) {
          positioned.wait(false);
          const int group = comm.open_group({0, 1});
          comm.set_position({412, 7});
          float x = 0;
          comm.all_reduce(group, &x, &x, 1, DType::f32);
        },
        [&](Communicator& comm, int) {
          comm.set_position({411, 881});
          positioned = true;
          positioned.notify_all();
        });
    CHECK(says(error, "all_reduce over ranks {0,1} timed out after 0.3 s at step 412"));
    CHECK(says(error, "rank 1 has not arrived: it is at step 411, instruction 881"));
    CHECK(error.missing == std::vector<int>{1});
  }
}

TEST_CASE("among many ranks only the missing ones are named") {
  SharedMemoryTransport transport(4, 0.3, 4096);
  std::atomic<int> blocked = 0;
  const std::vector<int> everyone = {3, 2, 1, 0};
  const auto barrier = [&](Communicator& comm) { comm.barrier(comm.open_group(everyone)); };
  const auto last_of_three = [&](Communicator& comm) {  // its timeout starts when only rank 2 can be missing
    const std::atomic<uint32_t>& arrivals = transport.memory->segment().open_group(everyone).arrivals;
    while (arrivals < 2 || transport.memory->status(2).state == RankState::starting) std::this_thread::yield();
    barrier(comm);
  };
  const CommError error = error_of(transport, 1, last_of_three, [&](Communicator& comm, int rank) {
    if (rank == 2) return;
    try {
      barrier(comm);
    } catch (const CommError&) {
      ++blocked;
    }
  });
  CHECK(error.missing == std::vector<int>{2});
  CHECK(says(error, "barrier over ranks {3,2,1,0}"));
  CHECK(says(error, "rank 2 has not arrived: it is still loading"));
  CHECK(blocked == 2);
}

TEST_CASE("a rank that never came is reported as not started") {
  const auto memory = SharedMemory::create({64, 64});
  const auto comm = make_shared_memory_communicator(memory, 0, 0.1);
  try {
    comm->barrier(comm->open_group({0, 1}));
    FAIL("the barrier ended without rank 1");
  } catch (const CommError& error) {
    CHECK(says(error, "rank 1 has not arrived: it has not started"));
  }
}

TEST_CASE("a recv without a send and a send without a recv time out") {
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    char data[16] = {};
    const CommError recv = error_of(
        *kind.make(2, 0.3), 0, [&](Communicator& comm) { comm.recv(1, data, 16); }, nothing);
    CHECK(says(recv, "recv of 16 bytes from rank 1 timed out after 0.3 s"));
    CHECK(recv.missing == std::vector<int>{1});
    const CommError send = error_of(
        *kind.make(2, 0.3), 1, [&](Communicator& comm) { comm.wait_send(0, comm.send(0, data, 16)); }, nothing);
    CHECK(says(send, "send 1 to rank 0 timed out after 0.3 s"));
    CHECK(send.missing == std::vector<int>{0});
  }
}

TEST_CASE("a rank marked as failed ends every wait long before the timeout") {
  SharedMemoryTransport transport(3, 600, 4096);
  const CommError error = error_of(
      transport, 0,
      [&](Communicator& comm) {
        comm.barrier(comm.open_group({0, 1, 2}));
      },
      [&](Communicator& comm, int rank) {
        if (rank != 2) return;
        comm.set_position({17, 4});
        transport.memory->status(2).state = RankState::failed;
      });
  CHECK(
      says(error, "barrier over ranks {0,1,2} was cancelled: rank 2 has failed, last seen at step 17, instruction 4"));
  CHECK(error.missing == std::vector<int>{2});
}

TEST_CASE("a peer that has finished without sending ends a recv, but what it sent still arrives") {
  SharedMemoryTransport transport(2, 600, 4096);
  char data[4] = {};
  const CommError error = error_of(
      transport, 0,
      [&](Communicator& comm) {
        comm.recv(1, data, 4);
        comm.recv(1, data, 4);
      },
      [&](Communicator& comm, int) {
        comm.send(0, "abc", 4);
        transport.memory->status(1).state = RankState::done;
      });
  CHECK(std::string(data) == "abc");
  CHECK(says(error, "rank 1 has finished without this call"));
}

TEST_CASE("ranks that never connect are named") {
  InMemoryStore store;
  try {
    make_gloo_communicator(store, 0, 3, {.timeout_seconds = 0.2});
    FAIL("connected without peers");
  } catch (const CommError& error) {
    CHECK(says(error, "connecting ranks {0,1,2} timed out after 0.2 s"));
    CHECK(error.missing == std::vector<int>{1, 2});
  }
}
