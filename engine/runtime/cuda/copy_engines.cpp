// Large collectives between the GPUs of a host by their copy engines: each rank pulls what it needs from the others'
// arenas, over NVLink if there is one. Which collectives are taken comes first, then how they are enqueued.
#include "engine/runtime/cuda/copy_engines.h"

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/base/error.h"
#include "engine/ops/cuda/driver_function_cuda.h"
#include "engine/runtime/cuda/peer_sums.h"

namespace trainctl::cuda {
namespace {

/// The device memory in bytes that is left free for later allocations of libraries.
constexpr int64_t kLeftFree = int64_t{1} << 30;

/// The driver's function for stream memory operations. Null if the driver does not have it.
decltype(&cuStreamBatchMemOp) memory_operations() {
  static const auto function = driver_function<decltype(cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  return function;
}

/// NCCL's own switch turns copy engines off too.
bool peers_are_off() {
  const char* text = std::getenv("NCCL_P2P_DISABLE");
  return text != nullptr && std::strcmp(text, "0") != 0;
}

/// Writes and waits that a stream does in order, without a kernel. A write comes after all earlier work of the stream.
class MemoryOperations {
 public:
  void write(void* flag, uint32_t value) {
    CUstreamBatchMemOpParams& o = list_.emplace_back();
    o.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    o.writeValue.address = reinterpret_cast<CUdeviceptr>(flag);
    o.writeValue.value = value;
  }
  void wait_for_one(void* flag) {
    CUstreamBatchMemOpParams& o = list_.emplace_back();
    o.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    o.waitValue.address = reinterpret_cast<CUdeviceptr>(flag);
    o.waitValue.value = 1;
    o.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  void enqueue(CudaStream stream) {
    const CUresult status = memory_operations()(stream, static_cast<unsigned>(list_.size()), list_.data(), 0);
    if (status != CUDA_SUCCESS)
      throw EnvError("cuStreamBatchMemOp (GPUs waiting for each other): CUDA error " + std::to_string(status));
  }

 private:
  std::vector<CUstreamBatchMemOpParams> list_;
};

static_assert(kMostCopyingRanks <= kMostSummands);

void pull(void* to, const std::byte* from, int64_t bytes, CudaStream stream) {
  if (bytes == 0 || to == from) return;
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
             "cudaMemcpyAsync from another GPU");
}

/// Pulls the elements from `first` on of every member's operand into the scratch memory, to be summed.
PeerSum pull_summands(const std::vector<const std::byte*>& from, int me, int64_t first, int64_t count, DType dtype,
                      std::byte* scratch, CudaStream stream) {
  const auto members = static_cast<int>(from.size());
  const int64_t bytes = count * byte_size(dtype), at = first * byte_size(dtype);
  PeerSum sum;
  sum.summands = members;
  sum.count = count;
  sum.dtype = dtype;
  sum.in[static_cast<size_t>(me)] = from[static_cast<size_t>(me)] + at;
  for (int i = 1; i < members; ++i, scratch += align_pulled(bytes)) {
    const auto m = static_cast<size_t>((me + i) % members);  // ranks start at different members: links share the load
    pull(scratch, from[m] + at, bytes, stream);
    sum.in[m] = scratch;
  }
  return sum;
}

}  // namespace

CopyEngines::CopyEngines(const Program& program, Communicator& ranks, int device, std::byte* arena)
    : program_(program),
      ranks_(ranks),
      device_(device),
      arena_(arena),
      memory_(copy_memory(program, ranks.num_ranks())) {
  take_calls();
  if (calls_.empty()) {
    peers_.clear();
    own_ = {};
    return;
  }
  rescue_ = make_stream(true);
  load_kernels();
}

/// Allocates the flags and the memory for pulled data. Returns false if too little memory would be left for other uses.
bool CopyEngines::allocate_own() {
  if (own_) return true;
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess || static_cast<int64_t>(free) < memory_.bytes + kLeftFree)
    return false;
  own_ = make_device_memory(memory_.bytes);
  return cudaDeviceSynchronize() == cudaSuccess;
}

/// All ranks of a group visit its collectives in the same order, and all ranks visit their groups in the same order, so
/// ranks that wait for one another here never deadlock.
void CopyEngines::take_calls() {
  std::map<std::vector<int>, std::vector<const Instruction*>> by_group;
  for (const Instruction& i : program_.instructions)
    if (may_be_copied(program_, i)) by_group[program_.groups[static_cast<size_t>(i.group)]].push_back(&i);
  for (const auto& [ranks, instructions] : by_group)
    take_group(program_.groups[static_cast<size_t>(instructions[0]->group)], instructions);
}

/// Takes over the collectives of a group if all of its ranks can open each other's memory; otherwise changes nothing.
void CopyEngines::take_group(const std::vector<int>& group, const std::vector<const Instruction*>& instructions) {
  const int id = ranks_.open_group(group);
  const auto all_say = [&](bool mine) {
    const int32_t word = mine ? 1 : 0;
    std::vector<int32_t> words(group.size());
    ranks_.all_gather(id, &word, words.data(), 1, DType::i32);
    return std::find(words.begin(), words.end(), 0) == words.end();
  };
  if (!all_say(!has_messages(program_) && !peers_are_off() && memory_operations() != nullptr && allocate_own())) return;
  if (!all_say(open_peers(id, group))) return;

  std::vector<int64_t> offsets;
  for (const Instruction* i : instructions) {
    offsets.push_back(i->inputs.at(0).offset);
    offsets.push_back(i->outputs.at(0).offset);
  }
  std::vector<int64_t> of_all(offsets.size() * group.size());
  ranks_.all_gather(id, offsets.data(), of_all.data(), static_cast<int64_t>(offsets.size() * 2), DType::i32);
  for (size_t k = 0; k < instructions.size(); ++k) {
    Call call;
    call.group = &group;
    for (size_t m = 0; m < group.size(); ++m) {
      const bool own = group[m] == program_.rank;
      if (own) call.me = static_cast<int>(m);
      const std::byte* base = own ? arena_ : peers_.at(group[m]).arena->base();
      const int64_t* at = of_all.data() + m * offsets.size() + 2 * k;
      call.in.push_back(base + at[0]);
      call.out.push_back(base + at[1]);
    }
    calls_.emplace(instructions[k], std::move(call));
  }
}

bool CopyEngines::open_peers(int id, const std::vector<int>& group) {
  struct Offer {
    SharedAllocation arena, own;
  };
  const Offer mine{SharedAllocation(arena_), SharedAllocation(own_.get())};
  static_assert(sizeof(Offer) % sizeof(int32_t) == 0);
  std::vector<Offer> offers(group.size());
  ranks_.all_gather(id, &mine, offers.data(), sizeof(Offer) / sizeof(int32_t), DType::i32);
  for (size_t m = 0; m < group.size(); ++m) {
    if (group[m] == program_.rank || peers_.contains(group[m])) continue;
    Peer peer{std::make_unique<PeerMemory>(offers[m].arena), std::make_unique<PeerMemory>(offers[m].own)};
    if (peer.arena->base() == nullptr || peer.own->base() == nullptr) return false;
    peers_.emplace(group[m], std::move(peer));
  }
  return true;
}

/// A kernel is loaded at its first launch, which may wait for the device: never while another rank waits for it.
void CopyEngines::load_kernels() const {
  for (const auto& [instruction, call] : calls_) {
    if (!makes_sums(instruction->collective)) continue;
    PeerSum sum;
    sum.summands = static_cast<int>(call.group->size());
    sum.in.fill(scratch());  // not the flags, which other ranks may be writing already
    sum.out = scratch();
    sum.dtype = instruction->inputs[0].dtype;
    for (int64_t count : {0, 1}) {  // elements that do not fill a pack have their own kernel
      sum.count = count;
      enqueue_sum(sum, nullptr);
    }
  }
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

bool CopyEngines::takes(const Instruction& instruction, const BoundMove& move) const {
  const auto found = calls_.find(&instruction);
  if (found == calls_.end()) return false;
  const bool of_blocks =
      instruction.collective != Collective::all_reduce && instruction.collective != Collective::broadcast;
  const auto blocks = static_cast<int64_t>(of_blocks ? found->second.group->size() : 1);
  return blocks * move.count * byte_size(move.dtype) >= kLeastCopiedBytes;
}

void CopyEngines::enqueue(const Instruction& instruction, const BoundMove& move, CudaStream stream,
                          const CountedRows* rows) const {
  const Call& call = calls_.at(&instruction);
  const auto members = static_cast<int>(call.group->size());
  const int64_t bytes = move.count * byte_size(move.dtype);
  auto* const out = static_cast<std::byte*>(move.out);

  synchronize(call, kReady, stream);
  switch (instruction.collective) {
    case Collective::all_reduce:
      all_reduce(call, move, stream);
      break;
    case Collective::reduce_scatter:
      return reduce_scatter(call, move, pulled_at_once(program_, instruction), stream);
    case Collective::all_gather:
      for (int i = 0; i < members; ++i) {
        const int m = (call.me + i) % members;
        pull(out + m * bytes, call.in[static_cast<size_t>(m)], bytes, stream);
      }
      break;
    case Collective::all_to_all:
      for (int i = 0; i < members; ++i) {
        const int m = (call.me + i) % members;
        const int64_t used = rows == nullptr ? bytes : rows->elements(members, m, call.me) * byte_size(move.dtype);
        pull(out + m * bytes, call.in[static_cast<size_t>(m)] + call.me * bytes, used, stream);
      }
      break;
    case Collective::broadcast:
      pull(out, call.in[static_cast<size_t>(instruction.root)], bytes, stream);
      break;
  }
  synchronize(call, kDone, stream);
}

/// Enqueues an all_reduce. `out` may be `in`: it is written only after all sums are done, that is, after all operands
/// have been read.
void CopyEngines::all_reduce(const Call& call, const BoundMove& move, CudaStream stream) const {
  const auto members = static_cast<int>(call.group->size());
  const int64_t size = byte_size(move.dtype);
  auto* const out = static_cast<std::byte*>(move.out);
  const Share own(move.count, call.me, members);
  PeerSum sum = pull_summands(call.in, call.me, own.first, own.count, move.dtype, scratch(), stream);
  sum.out = out + own.first * size;
  enqueue_sum(sum, stream);
  synchronize(call, kSummed, stream);
  for (int i = 1; i < members; ++i) {
    const int m = (call.me + i) % members;
    const Share share(move.count, m, members);
    pull(out + share.first * size, call.out[static_cast<size_t>(m)] + share.first * size, share.count * size, stream);
  }
}

/// Enqueues a reduce_scatter. The other members wait only until their operand has been read, not for the last sum.
void CopyEngines::reduce_scatter(const Call& call, const BoundMove& move, int64_t at_once, CudaStream stream) const {
  auto* const out = static_cast<std::byte*>(move.out);
  for (int64_t first = 0; first < move.count; first += at_once) {
    const int64_t count = std::min(at_once, move.count - first);
    PeerSum sum = pull_summands(call.in, call.me, call.me * move.count + first, count, move.dtype, scratch(), stream);
    sum.out = out + first * byte_size(move.dtype);
    if (first + count == move.count) synchronize(call, kDone, stream);
    enqueue_sum(sum, stream);
  }
}

std::byte* CopyEngines::scratch() const { return static_cast<std::byte*>(own_.get()) + memory_.flags; }

std::byte* CopyEngines::flag_of(std::byte* own, SyncPoint point, int rank) const {
  return own + (int64_t{point} * ranks_.num_ranks() + rank) * kFlagStride;
}

void CopyEngines::synchronize(const Call& call, SyncPoint point, CudaStream stream) const {
  MemoryOperations operations;
  std::vector<int> others = *call.group;
  std::erase(others, program_.rank);
  auto* const own = static_cast<std::byte*>(own_.get());
  for (int rank : others) operations.write(flag_of(peers_.at(rank).own->base(), point, program_.rank), 1);
  for (int rank : others) operations.wait_for_one(flag_of(own, point, rank));
  for (int rank : others) operations.write(flag_of(own, point, rank), 0);
  operations.enqueue(stream);
}

/// Sets all flags, so that waiting streams continue. It does so repeatedly, because running work may reach further
/// waits.
void CopyEngines::abort() {
  if (calls_.empty() || aborted_.exchange(true)) return;
  std::thread([device = device_, flags = own_.get(), bytes = static_cast<size_t>(memory_.flags),
               stream = rescue_.get()] {
    constexpr std::chrono::seconds kLong{10};
    constexpr std::chrono::milliseconds kBetween{1};
    cudaSetDevice(device);
    const auto end = std::chrono::steady_clock::now() + kLong;
    while (std::chrono::steady_clock::now() < end && cudaMemsetAsync(flags, 1, bytes, stream) == cudaSuccess)
      std::this_thread::sleep_for(kBetween);
  }).detach();
}

}  // namespace trainctl::cuda
