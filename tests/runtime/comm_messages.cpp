// Tests of send, recv and wait_send.
#include <atomic>
#include <numeric>

#include "tests/runtime/comm_ranks.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr double kCommMessagesPatience = 60;

std::vector<uint32_t> message(int from, int to, int64_t number, size_t count) {
  std::vector<uint32_t> data(count);
  std::iota(data.begin(), data.end(), static_cast<uint32_t>(from * 1000000 + to * 100000 + number * 100));
  return data;
}

void require_equal(const uint32_t* data, const std::vector<uint32_t>& wanted) {
  if (!std::equal(wanted.begin(), wanted.end(), data)) throw std::runtime_error("a message arrived changed");
}

}  // namespace

TEST_CASE("all ranks may send to all others before any receives") {
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const auto transport = kind.make(4, kCommMessagesPatience);
    run_ranks(*transport, [&](Communicator& comm, int rank) {
      constexpr size_t count = 5000;
      auto* arena = reinterpret_cast<uint32_t*>(transport->arena(rank).data());
      for (int64_t round = 1; round <= 20; ++round) {
        for (int peer = 0; peer < 4; ++peer) {
          if (peer == rank) continue;
          uint32_t* out = arena + static_cast<size_t>(peer) * count;
          const auto data = message(rank, peer, round, count);
          std::copy(data.begin(), data.end(), out);
          if (comm.send(peer, out, count * 4) != round) throw std::runtime_error("sends are numbered from 1");
        }
        for (int peer = 3; peer >= 0; --peer) {
          if (peer == rank) continue;
          uint32_t* in = arena + static_cast<size_t>(4 + peer) * count;
          comm.recv(peer, in, count * 4);
          require_equal(in, message(peer, rank, round, count));
        }
        for (int peer = 0; peer < 4; ++peer) {
          if (peer != rank) comm.wait_send(peer, round);
        }
      }
    });
  }
}

TEST_CASE("messages of a channel arrive in order, whatever their size and wherever they are stored") {
  const std::vector<size_t> counts = {1, 0, 7, 1023, 100000, 3};
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const auto transport = kind.make(2, kCommMessagesPatience);
    run_ranks(*transport, [&](Communicator& comm, int rank) {
      std::vector<std::vector<uint32_t>> kept;  // until received
      for (int64_t i = 0; i < 60; ++i) {
        const size_t count = counts[static_cast<size_t>(i) % counts.size()];
        if (rank == 0) {
          kept.push_back(message(0, 1, i, count));
          comm.send(1, kept.back().data(), static_cast<int64_t>(count) * 4);
        } else {
          std::vector<uint32_t> in(count);
          comm.recv(0, in.data(), static_cast<int64_t>(count) * 4);
          require_equal(in.data(), message(0, 1, i, count));
        }
      }
      if (rank == 0) comm.wait_send(1, 60);
    });
  }
}

TEST_CASE("recv_sum adds a message to what is there, whatever its size and wherever it is stored") {
  const std::vector<size_t> counts = {1, 0, 7, 1023, 100000, 3000001};
  for (const TransportKind& kind : transports()) {
    CAPTURE(kind.name);
    const auto transport = kind.make(3, kCommMessagesPatience);
    run_ranks(*transport, [&](Communicator& comm, int rank) {
      const auto term = [](int of, size_t i) { return static_cast<float>(of) + static_cast<float>(i % 1000) / 8; };
      for (size_t count : counts) {
        std::vector<float> data(count);
        for (size_t i = 0; i < count; ++i) data[i] = term(rank, i);
        const auto number = static_cast<int64_t>(count);
        if (rank > 0) {
          // On transports with a segment, a small message lies in the segment.
          auto* arena = reinterpret_cast<float*>(transport->arena(rank).data());
          const bool fits = data.size() * sizeof(float) <= transport->arena(rank).size();
          if (fits) std::copy(data.begin(), data.end(), arena);
          comm.wait_send(0, comm.send(0, fits ? arena : data.data(), number * 4));
          continue;
        }
        comm.recv_sum(1, data.data(), number);
        comm.recv_sum(2, data.data(), number);
        for (size_t i = 0; i < count; ++i)
          if (data[i] != term(0, i) + term(1, i) + term(2, i)) throw std::runtime_error("another sum");
      }
    });
  }
}

TEST_CASE("a sender that is far ahead waits for room, and all arrives") {
  SharedMemoryTransport transport(2, kCommMessagesPatience, 4096);
  run_ranks(transport, [&](Communicator& comm, int rank) {
    auto* arena = reinterpret_cast<uint32_t*>(transport.arena(rank).data());
    // 5000 messages are more than the 1024 places of a channel.
    for (uint32_t i = 0; i < 5000; ++i) {
      if (rank == 0) {
        if (i >= 1000) comm.wait_send(1, i - 999);
        arena[i % 1000] = i;
        comm.send(1, &arena[i % 1000], 4);
      } else {
        comm.recv(0, arena, 4);
        if (arena[0] != i) throw std::runtime_error("out of order");
      }
    }
    // The staged bytes are more than the staging area has, and the memory that is sent is reused at once.
    std::vector<uint32_t> own(3 << 20);  // 12 MiB
    for (uint32_t i = 0; i < 12; ++i) {
      const auto bytes = static_cast<int64_t>(own.size() - i) * 4;
      if (rank == 0) {
        std::fill(own.begin(), own.end(), i);
        comm.send(1, own.data(), bytes);
      } else {
        comm.recv(0, own.data(), bytes);
        if (own[0] != i || own[own.size() - i - 1] != i) throw std::runtime_error("a staged message was overwritten");
      }
    }
  });
}

TEST_CASE("wait_send returns only after the receiver has the message") {
  SharedMemoryTransport transport(2, kCommMessagesPatience, 4096);
  std::atomic<bool> received = false;
  run_ranks(transport, [&](Communicator& comm, int rank) {
    auto* arena = transport.arena(rank).data();
    if (rank == 0) {
      comm.wait_send(1, comm.send(1, arena, 64));
      if (!received) throw std::runtime_error("the send was not received yet");
    } else {
      received = true;
      comm.recv(0, arena, 64);
    }
  });
  CHECK(received);
}

TEST_CASE("a recv that is not as long as its send is found, and reported as our bug") {
  SharedMemoryTransport transport(2, kCommMessagesPatience, 4096);
  std::atomic<bool> found = false;
  run_ranks(transport, [&](Communicator& comm, int rank) {
    auto* arena = transport.arena(rank).data();
    if (rank == 0) {
      comm.send(1, arena, 64);
    } else {
      try {
        comm.recv(0, arena, 32);
      } catch (const InternalError&) {
        found = true;
      }
    }
  });
  CHECK(found);
}
