// Determines which collectives the copy engines of GPUs (cuda/copy_engines.h) can run, and the memory that a rank needs
// for them.
#include "engine/runtime/copied_collectives.h"

#include <algorithm>

#include "engine/base/round_up.h"

namespace trainctl {
namespace {

/// The least size of the allocation that peers map: one chunk of cudaMalloc, so that no other allocation of this
/// process lies in the same chunk and is shared too.
constexpr int64_t kLeastBytes = int64_t{2} << 20;

/// Bytes that this rank pulls from other members in order to sum them.
int64_t pulled_bytes(const Program& program, const Instruction& instruction) {
  if (!makes_sums(instruction.collective)) return 0;
  const auto members = static_cast<int>(program.groups[static_cast<size_t>(instruction.group)].size());
  const Operand& all = instruction.inputs[0];
  const int64_t count = instruction.collective == Collective::all_reduce
                            ? Share(num_elements(all.shape), 0, members).count
                            : pulled_at_once(program, instruction);
  return (members - 1) * align_pulled(count * byte_size(all.dtype));
}

}  // namespace

bool makes_sums(Collective kind) { return kind == Collective::all_reduce || kind == Collective::reduce_scatter; }

int64_t align_pulled(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  return round_up(bytes, kAlignment);
}

int64_t pulled_at_once(const Program& program, const Instruction& reduce_scatter) {
  const auto members = static_cast<int64_t>(program.groups[static_cast<size_t>(reduce_scatter.group)].size());
  const Operand &in = reduce_scatter.inputs[0], &out = reduce_scatter.outputs[0];
  const int64_t count = num_elements(in.shape) / members, size = byte_size(in.dtype);
  const bool apart = in.offset + in.bytes() <= out.offset || out.offset + out.bytes() <= in.offset;
  if (!apart || (members - 1) * count * size <= kMostPulledBytes) return count;
  return kMostPulledBytes / (members - 1) / align_pulled(1) * align_pulled(1) / size;
}

Share::Share(int64_t all, int i, int members) {
  const int64_t each = align_pulled((all + members - 1) / members);
  first = std::min(i * each, all);
  count = std::min(first + each, all) - first;
}

bool may_be_copied(const Program& program, const Instruction& instruction) {
  if (instruction.opcode != Opcode::collective || instruction.bytes() < kLeastCopiedBytes) return false;
  const auto members = static_cast<int>(program.groups[static_cast<size_t>(instruction.group)].size());
  const DType type = instruction.inputs[0].dtype;
  const bool floats = type == DType::f32 || type == DType::bf16;  // the kernels that sum know no f16
  return members > 1 && members <= kMostCopyingRanks && (floats || !makes_sums(instruction.collective));
}

bool has_messages(const Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const Instruction& i) { return i.opcode == Opcode::send || i.opcode == Opcode::recv; });
}

CopyMemory copy_memory(const Program& program, int num_ranks) {
  CopyMemory memory;
  if (has_messages(program)) return memory;
  bool any = false;
  int64_t pulled = 0;
  for (const Instruction& i : program.instructions) {
    if (!may_be_copied(program, i)) continue;
    any = true;
    pulled = std::max(pulled, pulled_bytes(program, i));
  }
  if (!any) return memory;
  memory.flags = align_pulled(kSyncPoints * kFlagStride * num_ranks);
  memory.bytes = std::max(memory.flags + pulled, kLeastBytes);
  return memory;
}

}  // namespace trainctl
