// Messages that copy engines move between two processes, in a captured step that is replayed. One GPU is enough: the
// driver runs the processes in turn.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/capture.h"
#include "engine/runtime/cuda/copy_engines.h"
#include "tests/skip.h"

using namespace trainctl;

namespace {

constexpr int kMessages = 6, kSteps = 20, kNoGpu = 77;
constexpr int64_t kElements = 1 << 18, kMessageBytes = kElements * 4;
constexpr int64_t kSent = 0, kReceived = kMessageBytes, kSource = 2 * kMessageBytes;

/// Each rank sends and receives kMessages, all from one buffer and into one buffer.
Program exchanging(int rank) {
  Program program;
  program.rank = rank;
  program.arena_bytes = 4 * kMessageBytes;
  for (int i = 0; i < 2 * kMessages; ++i) {
    Instruction message;
    const bool sends = i % 2 == rank;  // rank 0 sends first, rank 1 answers
    message.opcode = sends ? Opcode::send : Opcode::recv;
    message.purpose = Purpose::pipeline;
    message.peer = 1 - rank;
    Operand data;
    data.offset = sends ? kSent : kReceived;
    data.shape = {kElements};
    (sends ? message.inputs : message.outputs).push_back(data);
    program.instructions.push_back(message);
  }
  return program;
}

void must(cudaError_t status) { cuda_check(status, "a call of the test"); }

/// Rank 0 sends a part of its source, rank 1 sends back what it received.
class Exchange {
 public:
  Exchange(int rank, int device, Communicator& ranks)
      : rank_(rank),
        program_(exchanging(rank)),
        arena_(cuda::make_device_memory(program_.arena_bytes)),
        engines_(program_, ranks, device, at(0)),
        sends_(cuda::make_stream(true)),
        recvs_(cuda::make_stream(true)),
        compute_(cuda::make_stream(false)) {
    for (const Instruction& i : program_.instructions)
      if (!engines_.takes_message(i)) throw std::runtime_error("the copy engines do not take a message");
    graph_ = cuda::capture_graph(compute_.get(), [&] { enqueue_step(); });
  }

  void run_step(int step) {
    std::vector<uint32_t> source(kElements + kMessages), found(kElements);
    for (size_t i = 0; i < source.size(); ++i)
      source[i] = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(step);
    must(cudaMemcpy(at(kSource), source.data(), source.size() * 4, cudaMemcpyHostToDevice));
    must(cudaGraphLaunch(graph_.get(), compute_.get()));
    must(cudaStreamSynchronize(compute_.get()));
    must(cudaMemcpy(found.data(), at(kReceived), kMessageBytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < found.size(); ++i)
      if (found[i] != source[i + kMessages - 1]) throw std::runtime_error("a message has other data than was sent");
  }

 private:
  std::byte* at(int64_t offset) const { return static_cast<std::byte*>(arena_.get()) + offset; }

  void wait(cudaStream_t stream, cudaStream_t after) {
    events_.push_back(cuda::make_event());
    must(cudaEventRecord(events_.back().get(), after));
    must(cudaStreamWaitEvent(stream, events_.back().get()));
  }

  void enqueue_step() {
    cudaStream_t compute = compute_.get();
    const Instruction* last_send = nullptr;
    wait(sends_.get(), compute);
    wait(recvs_.get(), compute);
    for (const Instruction& i : program_.instructions) {
      if (i.opcode == Opcode::recv) {
        wait(recvs_.get(), compute);  // the buffer has been read
        engines_.recv(i, {nullptr, at(kReceived), kMessageBytes, DType::f32}, recvs_.get());
        continue;
      }
      if (last_send != nullptr) engines_.await_received(*last_send, compute);  // the buffer has been sent
      if (rank_ == 1) wait(compute, recvs_.get());
      const std::byte* from = rank_ == 0 ? at(kSource + int64_t{4} * sent_of(i)) : at(kReceived);
      must(cudaMemcpyAsync(at(kSent), from, kMessageBytes, cudaMemcpyDeviceToDevice, compute));
      wait(sends_.get(), compute);
      engines_.send(i, sends_.get());
      last_send = &i;
    }
    engines_.await_received(*last_send, compute);
    wait(compute, sends_.get());
    wait(compute, recvs_.get());
  }

  int64_t sent_of(const Instruction& send) const { return (&send - program_.instructions.data()) / 2; }

  const int rank_;
  const Program program_;
  cuda::DeviceMemory arena_;
  cuda::CopyEngines engines_;
  cuda::Stream sends_, recvs_, compute_;
  std::vector<cuda::Event> events_;
  cuda::GraphExec graph_;
};

int run_rank(const SharedMemory& memory, int rank) {
  try {
    const auto mine = SharedMemory::attach(dup(memory.fd()));
    const auto comm = make_shared_memory_communicator(mine, rank, 60);
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return kNoGpu;
    const int device = rank % devices;
    must(cudaSetDevice(device));
    {
      Exchange exchange(rank, device, *comm);
      const int both = comm->open_group({0, 1});
      for (int step = 0; step < kSteps; ++step) {
        comm->barrier(both);  // the source differs between steps, and rank 1 checks what it sends back
        exchange.run_step(step);
      }
      comm->barrier(both);
    }
    mine->status(rank).state = RankState::done;
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

TEST_CASE("messages between processes that copy engines move arrive whole and in order, in every replay of a step") {
  setenv("TRAINCTL_COPY_MESSAGES", "1", 1);
  const auto memory = SharedMemory::create({4096, 4096});
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t pid = fork();  // before anything uses CUDA
    if (pid == 0) _exit(run_rank(*memory, rank));
    pids.push_back(pid);
  }
  int none = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (code == kNoGpu) ++none;
    CHECK((code == 0 || code == kNoGpu));
  }
  if (none > 0) skip_test("no GPU");
}
