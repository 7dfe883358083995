// Collectives and messages between GPUs, enqueued on streams: only the constructor and connect() wait.
#include "engine/runtime/comm/nccl_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/runtime/cuda/handles.h"

namespace trainctl {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
  }
  return ncclFloat32;
}

ncclConfig_t named(const char* name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = name;
  return config;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const Program& program, Communicator& ranks, int device, StartUpClock* start_up)
    : nccl_(nccl_library()), program_(program), ranks_(ranks) {
  phase_ended(start_up, "NCCL library");
  const int num_ranks = ranks.num_ranks();
  Opening opening{nccl_, device, program.rank, num_ranks, agree_on_id(), {}};
  opening.splits = split_rounds(gather_groups(groups_of(program, num_ranks), ranks));
  phase_ended_together(start_up, "connect");
  std::packaged_task<Opened()> task(std::move(opening));
  opening_ = task.get_future();
  std::thread(std::move(task)).detach();
}

void NcclCommunicator::connect(StartUpClock* start_up) {
  constexpr std::chrono::milliseconds kBetweenLooks{10};
  while (opening_.wait_for(kBetweenLooks) != std::future_status::ready) {
    if (const auto error = ranks_.hopeless("NCCL's start", {}, false)) throw CommError(*error);
  }
  Opened opened = opening_.get();
  world_ = opened.world;
  comms_ = std::move(opened.groups);
  if (start_up != nullptr) start_up->add_concurrent(opened.start_up);
  connect_channels();
  phase_ended_together(start_up, "NCCL");
}

/// Does not call ncclCommDestroy, because that is collective over all ranks.
NcclCommunicator::~NcclCommunicator() {
  // After a failure the graphs remain, and NCCL would wait for them: the end of the process frees both.
  if (aborted_.exchange(true) || cuda::device_is_lost) return;
  for (const auto& [group, comm] : comms_) nccl_.abort(comm);
  if (world_ != nullptr) nccl_.abort(world_);
}

/// The id goes through the ranks' shared memory: no sockets, and no waiting for a listener.
ncclUniqueId NcclCommunicator::agree_on_id() const {
  std::vector<int> world(static_cast<size_t>(ranks_.num_ranks()));
  std::iota(world.begin(), world.end(), 0);
  const int all = ranks_.open_group(world);
  ncclUniqueId id{};
  if (ranks_.rank() == 0) nccl_.check(nccl_.get_unique_id(&id), "ncclGetUniqueId");
  static_assert(sizeof(id) % sizeof(int32_t) == 0);
  ncclUniqueId received{};
  ranks_.broadcast(all, &id, &received, sizeof(id) / sizeof(int32_t), DType::i32, 0);
  return received;
}

NcclCommunicator::Opened NcclCommunicator::Opening::operator()() const {
  Opened opened;
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
  opened.start_up.ended("CUDA");
  opened.world = world();
  opened.start_up.ended_together("NCCL world");
  for (const std::vector<NcclGroup>& groups : splits) split(opened.world, groups, opened);
  if (!splits.empty()) opened.start_up.ended_together("NCCL groups");
  return opened;
}

ncclComm_t NcclCommunicator::Opening::world() const {
  ncclConfig_t config = named("trainctl");
  ncclComm_t comm = nullptr;
  nccl.check(nccl.init_rank(&comm, num_ranks, id, rank, &config), "ncclCommInitRankConfig");
  return comm;
}

void NcclCommunicator::Opening::split(ncclComm_t world, const std::vector<NcclGroup>& groups, Opened& opened) const {
  int color = NCCL_SPLIT_NOCOLOR, key = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& ranks = groups[g].ranks;
    const auto me = std::find(ranks.begin(), ranks.end(), rank);
    if (me == ranks.end()) continue;
    color = static_cast<int>(g);
    key = static_cast<int>(me - ranks.begin());
  }
  // The new communicator shares nothing with its parent, because calls that share resources run one after another.
  ncclConfig_t config = named("trainctl.group");
  config.splitShare = 0;
  ncclComm_t comm = nullptr;
  nccl.check(nccl.split(world, color, key, &comm, &config), "ncclCommSplit");
  if (comm != nullptr) opened.groups[groups[static_cast<size_t>(color)]] = comm;
}

/// NCCL connects two ranks in their first message, where each host waits for the other. In a step that could
/// last forever: both may send before they receive. So connect all channels here, in one group.
void NcclCommunicator::connect_channels() const {
  const bool any = std::any_of(comms_.begin(), comms_.end(), [](const auto& c) { return c.first.is_channel; });
  if (!any) return;
  void* byte = nullptr;
  if (cudaMalloc(&byte, 2) != cudaSuccess) throw EnvError("cudaMalloc: out of memory while connecting the ranks");
  nccl_.check(nccl_.group_start(), "ncclGroupStart");
  for (const auto& [group, comm] : comms_) {
    if (!group.is_channel) continue;
    if (group.ranks[0] == program_.rank)
      nccl_.check(nccl_.send(byte, 1, ncclUint8, 1, comm, nullptr), "ncclSend");
    else
      nccl_.check(nccl_.recv(static_cast<char*>(byte) + 1, 1, ncclUint8, 0, comm, nullptr), "ncclRecv");
  }
  nccl_.check(nccl_.group_end(), "ncclGroupEnd");
  const cudaError_t status = cudaStreamSynchronize(nullptr);
  cudaFree(byte);
  if (status != cudaSuccess) throw EnvError(std::string("connecting the ranks: ") + cudaGetErrorString(status));
}

ncclComm_t NcclCommunicator::comm_of(const NcclGroup& group) const {
  const auto found = comms_.find(group);
  return found == comms_.end() ? world_ : found->second;
}

void NcclCommunicator::collective(const Instruction& instruction, const BoundMove& move, CudaStream stream,
                                  const CountedRows* rows) const {
  const std::vector<int>& ranks = program_.groups[static_cast<size_t>(instruction.group)];
  ncclComm_t comm = comm_of({ranks, false});
  const auto& [in, out, count, dtype] = move;
  const auto n = static_cast<size_t>(count);
  const ncclDataType_t type = type_of(dtype);
  switch (instruction.collective) {
    case Collective::all_reduce:
      return nccl_.check(nccl_.all_reduce(in, out, n, type, ncclSum, comm, stream), "ncclAllReduce");
    case Collective::all_gather:
      return nccl_.check(nccl_.all_gather(in, out, n, type, comm, stream), "ncclAllGather");
    case Collective::reduce_scatter:
      return nccl_.check(nccl_.reduce_scatter(in, out, n, type, ncclSum, comm, stream), "ncclReduceScatter");
    case Collective::broadcast:
      return nccl_.check(nccl_.broadcast(in, out, n, type, instruction.root, comm, stream), "ncclBroadcast");
    case Collective::all_to_all:
      return all_to_all(comm, ranks, move, rows, stream);
  }
}

/// Both ranks of a pair know the number of its rows, so neither calls NCCL for a pair without rows.
void NcclCommunicator::all_to_all(ncclComm_t comm, const std::vector<int>& ranks, const BoundMove& move,
                                  const CountedRows* rows, CudaStream stream) const {
  const int64_t bytes = move.count * byte_size(move.dtype), p = static_cast<int64_t>(ranks.size());
  const ncclDataType_t type = type_of(move.dtype);
  const int64_t me = std::find(ranks.begin(), ranks.end(), program_.rank) - ranks.begin();
  const auto elements = [&](int64_t from, int64_t to) {
    return static_cast<size_t>(rows == nullptr ? move.count : rows->elements(p, from, to));
  };
  nccl_.check(nccl_.group_start(), "ncclGroupStart");
  for (int64_t j = 0; j < p; ++j) {
    const int peer = static_cast<int>(j);
    const void* from = static_cast<const char*>(move.in) + j * bytes;
    void* to = static_cast<char*>(move.out) + j * bytes;
    if (const size_t n = elements(me, j); n > 0) nccl_.check(nccl_.send(from, n, type, peer, comm, stream), "ncclSend");
    if (const size_t n = elements(j, me); n > 0) nccl_.check(nccl_.recv(to, n, type, peer, comm, stream), "ncclRecv");
  }
  nccl_.check(nccl_.group_end(), "ncclGroupEnd");
}

void NcclCommunicator::send(int peer, const void* data, int64_t bytes, CudaStream stream) const {
  ncclComm_t comm = comms_.at({{program_.rank, peer}, true});
  nccl_.check(nccl_.send(data, static_cast<size_t>(bytes), ncclUint8, 1, comm, stream), "ncclSend");
}

void NcclCommunicator::recv(int peer, void* data, int64_t bytes, CudaStream stream) const {
  ncclComm_t comm = comms_.at({{peer, program_.rank}, true});
  nccl_.check(nccl_.recv(data, static_cast<size_t>(bytes), ncclUint8, 0, comm, stream), "ncclRecv");
}

std::optional<std::string> NcclCommunicator::async_error() const {
  if (aborted_) return std::nullopt;
  const auto look = [&](ncclComm_t comm) -> std::optional<std::string> {
    ncclResult_t result = ncclSuccess;
    if (nccl_.async_error(comm, &result) != ncclSuccess || result == ncclSuccess || result == ncclInProgress)
      return std::nullopt;
    const char* said = nccl_.last_error(comm);
    return std::string("NCCL: ") + nccl_.error_string(result) + (said == nullptr ? "" : std::string(": ") + said);
  };
  if (auto error = look(world_)) return error;
  for (const auto& [group, comm] : comms_) {
    if (auto error = look(comm)) return error;
  }
  return std::nullopt;
}

/// Each call stops the kernels on the device, then waits for graphs that may run kernels of the other communicators.
/// So no call may wait for another: one thread each.
void NcclCommunicator::abort() {
  if (aborted_.exchange(true)) return;
  const auto end = [this](ncclComm_t comm) { std::thread([abort = nccl_.abort, comm] { abort(comm); }).detach(); };
  for (const auto& [group, comm] : comms_) end(comm);
  if (world_ != nullptr) end(world_);
}

}  // namespace trainctl
