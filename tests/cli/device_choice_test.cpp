// Tests which devices a job's ranks run on, on simulated hosts.
#include "cli/run/launch/device_choice.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "engine/base/error.h"
#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;

namespace {

CudaDevices host(int gpus, int64_t free_bytes = int64_t{8} << 30) {
  CudaDevices found;
  for (int i = 0; i < gpus; ++i) {
    found.list.push_back({"NVIDIA H200", "GPU-" + std::to_string(i), int64_t{8} << 30, free_bytes, i / 2, i});
  }
  if (gpus == 0) found.why_none = "the NVIDIA driver finds no GPU";
  return found;
}

JobSpec spec_of(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"parallel.mode=data_parallel", "launch.ranks=2"});
  return job_spec("small", overrides);
}

std::string refusal(const std::vector<std::string>& overrides, const CudaDevices& found) {
  const PlannedJob job = plan_job(spec_of(overrides));
  try {
    gpus_of_ranks(job, compile_classes(job), found);
    return "";
  } catch (const EnvError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("launch.device: auto uses GPUs if there is one for every rank") {
  CHECK(resolve_device(spec_of(), host(2)) == Device::cuda);
  CHECK(resolve_device(spec_of(), host(1)) == Device::cpu);
  CHECK(resolve_device(spec_of(), host(0)) == Device::cpu);
  CHECK(resolve_device(spec_of({"launch.comm=gloo"}), host(2)) == Device::cpu);
  CHECK(resolve_device(spec_of({"launch.device=cpu"}), host(2)) == Device::cpu);
  CHECK(resolve_device(spec_of({"launch.device=cuda"}), host(0)) == Device::cuda);
}

TEST_CASE("launch.device: cuda without enough GPUs says how many there are and are needed, and why there are none") {
  const std::vector<std::string> cuda = {"launch.device=cuda"};
  CHECK(refusal(cuda, host(1)) ==
        "launch.device is cuda and launch.ranks is 2, so 2 GPUs are needed; this host has 1 (NVIDIA H200)\n"
        "  set launch.device: cpu, or launch.ranks: 1");
  CHECK(refusal(cuda, host(0)) ==
        "launch.device is cuda and launch.ranks is 2, so 2 GPUs are needed; there is none: the NVIDIA driver finds "
        "no GPU\n  set launch.device: cpu");
  CHECK(refusal({"launch.device=cuda", "launch.comm=shm"}, host(2)).find("GPUs communicate over NCCL") !=
        std::string::npos);
  CHECK(refusal(cuda, host(2)).empty());
}

TEST_CASE("a rank that does not fit in the free memory of its GPU is refused with its needs, by kind") {
  const std::string said = refusal({"launch.device=cuda"}, host(2, 1000));
  CHECK(said.starts_with("plan: rank 0 needs "));
  CHECK(said.find("gpu 0 (NVIDIA H200) has") != std::string::npos);
  CHECK(said.find("weights") != std::string::npos);
  CHECK(said.find("workspace 32.0 MiB") != std::string::npos);
}

TEST_CASE("the workspace and 1 GiB for CUDA and NCCL count, optional memory does not") {
  const std::vector<std::string> cuda = {"launch.device=cuda"};
  const Memory memory = compile_all(plan_job(spec_of(cuda)))[0].memory;
  CHECK(memory.data_set > 0);
  const int64_t enough = memory.arena() + memory.workspace + (int64_t{1} << 30);
  CHECK(refusal(cuda, host(2, enough)).empty());
  CHECK_FALSE(refusal(cuda, host(2, enough - 1)).empty());
}

TEST_CASE("the first lines of a run say which devices it uses") {
  const CudaDevices found = host(8);
  CHECK(describe_gpus({found.list.begin(), found.list.begin() + 2}, found) == "2 of 8 GPUs (NVIDIA H200)");
  CHECK(describe_gpus(host(1).list, host(1)) == "1 GPU (NVIDIA H200)");
  CHECK(describe_cpus(spec_of(), Device::automatic, host(0)) == "CPUs");
  CHECK(describe_cpus(spec_of(), Device::automatic, host(1)) == "CPUs (this host has only 1 GPU)");
  CHECK(describe_cpus(spec_of(), Device::cpu, host(8)) == "CPUs");
}

TEST_CASE("unbound ranks are bound to the cores of their GPU's node") {
  Topology topology;
  for (int id = 0; id < 8; ++id) topology.cpus.push_back({id, id, id / 4});
  std::vector<RankBinding> bindings(3);
  bindings[1].cpus = {7};
  bind_to_gpus(host(3).list, topology, bindings);
  CHECK(bindings[0].cpus == std::vector<int>{0, 1, 2, 3});
  CHECK(bindings[1].cpus == std::vector<int>{7});
  CHECK(bindings[2].cpus == std::vector<int>{4, 5, 6, 7});
}

TEST_CASE("a rank has a hardware queue for each of its streams, and CUDA's default number if that is enough") {
  Program program;
  CHECK(queues_for(program) == 8);
  const auto send_to = [&](int peer) {
    program.instructions.emplace_back().opcode = Opcode::send;
    program.instructions.back().peer = peer;
  };
  program.instructions.emplace_back().opcode = Opcode::collective;
  CHECK(queues_for(program) == 8);
  send_to(1), send_to(1);
  CHECK(queues_for(program) == 16);
  for (int peer = 2; peer < 100; ++peer) send_to(peer);
  CHECK(queues_for(program) == 32);
}

namespace {

/// The CUDA libraries that trainctl tries to open.
std::string opened(const std::vector<std::string>& arguments) {
  const Scratch scratch;
  small_job(scratch.path());
  setenv("LD_DEBUG", "libs", 1);  // the loader prints the name of each library that it looks for
  const std::string said = trainctl_command(scratch.path(), arguments).err;
  unsetenv("LD_DEBUG");
  CHECK(contains(said, "find library=libstdc++"));
  std::string found;
  for (const char* library : {"libcuda.so", "libnvidia-ml", "libnccl", "libcublas"}) {
    if (contains(said, std::string("find library=") + library)) found += std::string(library) + " ";
  }
  return found;
}

}  // namespace

TEST_CASE("plan and show open no CUDA library, whatever the device") {
  CHECK(opened({"plan", "job.yaml", "launch.device=cuda"}) == "");
  CHECK(opened({"show", "program", "job.yaml", "launch.device=cuda"}) == "");
  CHECK(opened({"run", "job.yaml", "launch.device=cpu"}) == "");
}

TEST_CASE("run looks for GPUs if it may use them") {
  if (!cuda_version_of_build()) return skip_test("built without CUDA");
  CHECK(contains(opened({"run", "job.yaml", "launch.device=auto"}), "libnvidia-ml"));
}
