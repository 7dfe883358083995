// A separate program: after a device error a process cannot use the device again.
#include <doctest/doctest.h>

#include <chrono>

#include "engine/base/error.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "tests/gpu/fault/faulty_kernel.h"
#include "tests/gpu/gpus.h"

using namespace trainctl;

TEST_CASE("a kernel that faults ends the rank with an error that says which rank, GPU and step") {
  if (!have_gpus(1)) return;
  Program program;
  program.arena_bytes = 4096;
  const auto memory = SharedMemory::create({program.arena_bytes});
  const auto comm = make_shared_memory_communicator(memory, 0, 10);
  const auto executor = make_cuda_executor(program, *comm, {}, {.gpu = 5});
  for (uint32_t step = 0; step < 3; ++step) {
    executor->start_step(nullptr, {.step = step});
    executor->finish_step();
  }
  run_faulty_kernel();
  std::string said;
  try {
    for (uint32_t step = 3; step < 5; ++step) {
      executor->start_step(nullptr, {.step = step});
      executor->finish_step();
    }
  } catch (const EnvError& error) {
    said = error.what();
  }
  CAPTURE(said);
  CHECK(said.find("rank 0 (gpu 5): step ") != std::string::npos);
  CHECK(said.find("cudaErrorIllegalAddress") != std::string::npos);
  CHECK(said.find("CUDA_LAUNCH_BLOCKING=1") != std::string::npos);
}
