// Tests of ranks that are processes with a common segment: the same calls as between threads, and ranks that die.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/runtime/comm_expected.h"
#include "tests/runtime/comm_ranks.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr double kCommProcessesPatience = 60;

/// Forks a process that attaches to the segment through its own descriptor. It reports that it is done, as a worker
/// does, and exits with 0, unless the body throws: peers that still communicate take a rank that ends without a report
/// for lost.
pid_t fork_rank(const SharedMemory& memory, int rank, double timeout_seconds,
                const std::function<void(SharedMemory&, Communicator&)>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  int code = 0;
  try {
    const auto mine = SharedMemory::attach(dup(memory.fd()));
    const auto comm = make_shared_memory_communicator(mine, rank, timeout_seconds);
    body(*mine, *comm);
    mine->status(rank).state = RankState::done;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    code = 1;
  }
  _exit(code);
}

int exit_code(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

TEST_CASE("ranks that are processes get the same bits as ranks that are threads") {
  const auto memory = SharedMemory::create(std::vector<int64_t>(6, kTestArena), ring_routes(6));
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 6; ++rank) {
    pids.push_back(fork_rank(*memory, rank, kCommProcessesPatience, [rank](SharedMemory& mine, Communicator& comm) {
      auto* arena = reinterpret_cast<uint32_t*>(mine.arena(rank).data());
      std::vector<uint32_t> own(kTestArena / 4);
      for (uint64_t i = 0; i < 250; ++i) {
        const Case c = random_case(i, 6, {1, 7, 1023, 20011, 60000});
        if (std::count(c.ranks.begin(), c.ranks.end(), rank) == 0) continue;
        check_case(comm, c, i % 4 == 0 ? own.data() : arena);
      }
      // The ranks form a ring: each sends to the next one and receives from the previous one.
      arena[0] = static_cast<uint32_t>(rank);
      const int64_t number = comm.send((rank + 1) % 6, arena, 4);
      comm.recv((rank + 5) % 6, arena + 1, 4);
      comm.wait_send((rank + 1) % 6, number);
      if (arena[1] != static_cast<uint32_t>((rank + 5) % 6)) throw std::runtime_error("the ring is broken");
    }));
  }
  for (pid_t pid : pids) CHECK(exit_code(pid) == 0);
}

TEST_CASE("a rank that is killed ends its peers' waits, with or without a launcher to say so") {
  for (bool launcher : {true, false}) {
    CAPTURE(launcher);
    const auto memory = SharedMemory::create({4096, 4096});
    const pid_t victim = fork_rank(*memory, 1, kCommProcessesPatience, [](SharedMemory&, Communicator& comm) {
      comm.set_position({3, 14});
      comm.barrier(comm.open_group({0, 1}));
      pause();
    });
    const auto comm = make_shared_memory_communicator(memory, 0, 600);
    comm->set_position({3, 2});
    const int group = comm->open_group({0, 1});
    comm->barrier(group);
    kill(victim, SIGKILL);
    CHECK(exit_code(victim) == -SIGKILL);
    if (launcher) memory->status(1).state = RankState::failed;
    try {
      comm->barrier(group);
      FAIL("the barrier ended without rank 1");
    } catch (const CommError& error) {
      const std::string text = error.what();
      CHECK(text.find(launcher ? "rank 1 has failed" : "rank 1 has exited") != std::string::npos);
      CHECK(text.find("step 3, instruction 14") != std::string::npos);
      CHECK(error.missing == std::vector<int>{1});
    }
  }
}

TEST_CASE("a child that executes another program still has the segment") {
  const auto memory = SharedMemory::create({4096});
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string path = "/proc/self/fd/" + std::to_string(memory->fd());
    execl("/usr/bin/test", "test", "-e", path.c_str(), nullptr);
    _exit(9);
  }
  CHECK(exit_code(pid) == 0);
}
