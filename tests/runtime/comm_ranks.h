// Runs the same function as N ranks, each of which is a thread with its own Communicator.
#pragma once

#include <doctest/doctest.h>

#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/comm/gloo_communicator.h"
#include "engine/runtime/comm/shared_memory_communicator.h"

namespace trainctl::test {

/// A transport between ranks. `arena(rank)` is memory that it reaches without copies, if it has such memory.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::unique_ptr<Communicator> connect(int rank) = 0;
  virtual std::span<std::byte> arena(int rank) = 0;
  virtual int num_ranks() const = 0;
};

/// Routes from each rank to each other rank.
inline std::vector<Route> all_routes(int num_ranks) {
  std::vector<Route> routes;
  for (int from = 0; from < num_ranks; ++from) {
    for (int to = 0; to < num_ranks; ++to) {
      if (from != to) routes.push_back({from, to});
    }
  }
  return routes;
}

/// Routes from each rank to the next one, and from the last rank to the first.
inline std::vector<Route> ring_routes(int num_ranks) {
  std::vector<Route> routes;
  for (int from = 0; from < num_ranks; ++from) routes.push_back({from, (from + 1) % num_ranks});
  return routes;
}

class SharedMemoryTransport : public Transport {
 public:
  SharedMemoryTransport(int num_ranks, double timeout_seconds, int64_t arena_bytes)
      : memory(SharedMemory::create(std::vector<int64_t>(static_cast<size_t>(num_ranks), arena_bytes),
                                    all_routes(num_ranks))),
        timeout_(timeout_seconds) {}
  std::unique_ptr<Communicator> connect(int rank) override {
    return make_shared_memory_communicator(memory, rank, timeout_);
  }
  std::span<std::byte> arena(int rank) override { return memory->arena(rank); }
  int num_ranks() const override { return memory->num_ranks(); }

  std::shared_ptr<SharedMemory> memory;

 private:
  double timeout_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(int num_ranks, double timeout_seconds, int64_t arena_bytes, bool encrypts = false)
      : num_ranks_(num_ranks), timeout_(timeout_seconds), encrypts_(encrypts) {
    std::signal(SIGPIPE, SIG_IGN);  // as in a worker: a lost peer is an error and must not kill this process
    for (int i = 0; i < num_ranks; ++i) arenas_.emplace_back(static_cast<size_t>(arena_bytes));
  }
  std::unique_ptr<Communicator> connect(int rank) override {
    // The timeout for connecting is longer: it is not what a test with a short timeout tests, and connecting may be
    // slow on a busy machine.
    return make_gloo_communicator(store, rank, num_ranks_,
                                  {.timeout_seconds = timeout_, .connect_seconds = 60, .encrypts = encrypts_});
  }
  std::span<std::byte> arena(int rank) override { return arenas_[static_cast<size_t>(rank)]; }
  int num_ranks() const override { return num_ranks_; }

  InMemoryStore store;

 private:
  int num_ranks_;
  double timeout_;
  bool encrypts_;
  std::vector<std::vector<std::byte>> arenas_;
};

using MakeTransport = std::function<std::unique_ptr<Transport>(int num_ranks, double timeout_seconds)>;

struct TransportKind {
  std::string name;
  MakeTransport make;
};

inline constexpr int64_t kTestArena = int64_t{4} << 20;

inline const std::vector<TransportKind>& transports() {
  static const std::vector<TransportKind> all = {
      {"shared memory",
       [](int n, double s) -> std::unique_ptr<Transport> {
         return std::make_unique<SharedMemoryTransport>(n, s, kTestArena);
       }},
      {"gloo",
       [](int n, double s) -> std::unique_ptr<Transport> { return std::make_unique<GlooTransport>(n, s, kTestArena); }},
      {"gloo in TLS",
       [](int n, double s) -> std::unique_ptr<Transport> {
         return std::make_unique<GlooTransport>(n, s, kTestArena, true);
       }},
  };
  return all;
}

/// Runs body(communicator, rank) on one thread per rank. Rethrows the first exception, if possible of a rank that did
/// not merely wait for a failed one.
inline void run_ranks(Transport& transport, const std::function<void(Communicator&, int)>& body) {
  const auto n = static_cast<size_t>(transport.num_ranks());
  std::vector<std::exception_ptr> errors(n);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto comm = transport.connect(static_cast<int>(rank));
        body(*comm, static_cast<int>(rank));
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr waited;
  for (const std::exception_ptr& error : errors) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const CommError&) {
      if (!waited) waited = error;
    }
  }
  if (waited) std::rethrow_exception(waited);
  CHECK_FALSE(waited);  // every rank came to the end of its body, where what differs from the expected throws
}

}  // namespace trainctl::test
