// Tests which GPUs a process sees, and how the groups of a job become NCCL communicators. Needs no GPU.
#include "engine/runtime/cuda/devices.h"

#include <doctest/doctest.h>

#include "engine/runtime/comm/nccl_splits.h"

using namespace trainctl;

namespace {

std::string visible(const char* variable) {
  const std::vector<CudaDevice> all = {{"a", "GPU-11aa"}, {"b", "GPU-22bb"}, {"c", "GPU-23cc"}};
  std::string names;
  for (const CudaDevice& device : visible_devices(all, variable)) names += device.name;
  return names;
}

}  // namespace

TEST_CASE("CUDA_VISIBLE_DEVICES is read as CUDA reads it") {
  CHECK(visible(nullptr) == "abc");
  CHECK(visible("") == "");
  CHECK(visible("2,0") == "ca");
  CHECK(visible("GPU-22, GPU-11aa") == "ba");
  CHECK(visible("1,3,0") == "b");
  CHECK(visible("-1") == "");
  CHECK(visible("0,0") == "");
  CHECK(visible("99999999999") == "");
}

TEST_CASE("without a GPU, the reason is stated") {
  const CudaDevices devices = find_cuda_devices();
  CHECK(devices.list.empty() == !devices.why_none.empty());
}

TEST_CASE("groups of NCCL are made in rounds of groups that share no rank") {
  std::vector<NcclGroup> groups;
  for (const std::vector<int>& ranks : {std::vector<int>{0, 1}, {0, 2}, {1, 3}, {2, 3}})
    groups.push_back({ranks, false});
  for (const std::vector<int>& ranks : {std::vector<int>{0, 1}, {1, 0}}) groups.push_back({ranks, true});
  const auto rounds = split_rounds(groups);
  REQUIRE(rounds.size() == 4);
  CHECK(rounds[0] == std::vector<NcclGroup>{groups[0], groups[3]});
  CHECK(rounds[1] == std::vector<NcclGroup>{groups[1], groups[2]});
  CHECK(rounds[2] == std::vector<NcclGroup>{groups[4]});
}

TEST_CASE("a rank opens the groups that it calls, but not the world, and one channel per peer and direction") {
  Program program;
  program.rank = 1;
  program.groups = {{0, 1, 2}, {1, 2}, {0, 1}};
  const auto add = [&](Opcode opcode, int group, int peer) {
    Instruction i;
    i.opcode = opcode;
    i.group = group;
    i.peer = peer;
    program.instructions.push_back(i);
  };
  add(Opcode::collective, 0, -1);
  add(Opcode::collective, 1, -1);
  add(Opcode::collective, 1, -1);
  add(Opcode::send, -1, 2);
  add(Opcode::recv, -1, 2);
  const std::vector<NcclGroup> expected = {{{1, 2}, false}, {{1, 2}, true}, {{2, 1}, true}};
  CHECK(groups_of(program, 3) == expected);
}
