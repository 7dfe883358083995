// Level 3, and the forward gathers of levels 1 and 2: moves each gather of weights one layer ahead, so that the comm
// stream gathers the next layer's weights while the compute stream works on this layer. At level 3 at most two layers'
// weights are in memory at a time.
//
//   as lowered   G1 c1 G2 c2 G3 c3
//   ahead        G1 G2 c1 G3 c2 c3
//
// If a micro-batch's backward task starts with the weights that its forward task ended with, they are gathered once.
// A kernel that rounds a shard for its gather (level 3 in bf16) stays in front of it.
//
// A shard changes only at the end of a step, so its gather may be anywhere before that. The ranks of a group run
// the same tasks and nodes, so they still issue their collectives in the same order.
#include <vector>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

bool gathers_weights(const Instruction& code) {
  return code.opcode == Opcode::collective && code.purpose == Purpose::weights && code.micro_batch >= 0;
}

bool rounds_weights(const Instruction& code) {
  return code.opcode == Opcode::kernel && code.purpose == Purpose::weights && code.micro_batch >= 0;
}

/// The range of instructions of a gather and of the kernel that rounds its shard, if there is one.
struct Gather {
  size_t begin = 0, end = 0;
};

std::vector<Gather> find_gathers(const Compiler& c) {
  std::vector<Gather> gathers;
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (!gathers_weights(c.code[i].code)) continue;
    gathers.push_back({i > 0 && rounds_weights(c.code[i - 1].code) ? i - 1 : i, i + 1});
  }
  return gathers;
}

/// If a gather repeats the one before it for the same micro-batch, one copy serves both.
void leave_out_repeated(Compiler& c) {
  std::vector<BufferId> instead(c.buffers.size(), -1);
  std::vector<bool> repeated(c.code.size());
  const VirtualInstruction* before = nullptr;
  for (const Gather& gather : find_gathers(c)) {
    const VirtualInstruction& v = c.code[gather.end - 1];
    const bool is_same =
        before != nullptr && before->code.name == v.code.name && before->code.micro_batch == v.code.micro_batch;
    if (!is_same) {
      before = &v;
      continue;
    }
    instead[v.outputs[0]] = before->outputs[0];
    for (size_t i = gather.begin; i < gather.end; ++i) repeated[i] = true;
  }
  std::vector<VirtualInstruction> kept;
  kept.reserve(c.code.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (repeated[i]) continue;
    for (BufferId& buffer : c.code[i].inputs)
      if (instead[buffer] >= 0) buffer = instead[buffer];
    kept.push_back(std::move(c.code[i]));
  }
  c.code = std::move(kept);
}

}  // namespace

void gather_ahead(Compiler& c) {
  leave_out_repeated(c);
  const std::vector<Gather> gathers = find_gathers(c);
  if (gathers.empty()) return;
  std::vector<VirtualInstruction> ordered;
  ordered.reserve(c.code.size());
  const auto place = [&](const Gather& gather) {
    for (size_t i = gather.begin; i < gather.end; ++i) ordered.push_back(std::move(c.code[i]));
  };
  size_t next = 0;  // index in `gathers` of the first one whose old place has not been reached
  for (size_t i = 0; i < c.code.size();) {
    if (next == gathers.size() || gathers[next].begin != i) {
      ordered.push_back(std::move(c.code[i++]));
      continue;
    }
    i = gathers[next].end;
    if (next == 0) place(gathers[0]);
    if (++next < gathers.size()) place(gathers[next]);
  }
  c.code = std::move(ordered);
}

}  // namespace trainctl
