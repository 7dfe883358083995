// Level 3, and the forward gathers of levels 1 and 2: moves each gather of weights one layer ahead, so that the comm
// stream gathers the next layer's weights while the compute stream works on this layer. At level 3 at most two layers'
// weights are in memory at a time.
//
//   as lowered   G1 c1 G2 c2 G3 c3
//   ahead        G1 G2 c1 G3 c2 c3
//
// If a micro-batch's backward task starts with the weights that its forward task ended with, they are gathered once.
//
// A shard changes only at the end of a step, so its gather may stand anywhere before that. The ranks of a group run
// the same tasks and nodes, so they still issue their collectives in the same order.
#include <vector>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

bool gathers_weights(const Instruction& code) {
  return code.opcode == Opcode::collective && code.purpose == Purpose::weights && code.micro_batch >= 0;
}

/// If a gather repeats the one before it for the same micro-batch, one copy serves both.
void leave_out_repeated(Compiler& c) {
  std::vector<BufferId> instead(c.buffers.size(), -1);
  const VirtualInstruction* before = nullptr;
  std::vector<VirtualInstruction> kept;
  kept.reserve(c.code.size());  // so that `before` stays valid
  for (VirtualInstruction& v : c.code) {
    for (BufferId& buffer : v.inputs)
      if (instead[buffer] >= 0) buffer = instead[buffer];
    if (gathers_weights(v.code) && before != nullptr && before->inputs == v.inputs &&
        before->code.inputs[0].offset == v.code.inputs[0].offset && before->code.micro_batch == v.code.micro_batch) {
      instead[v.outputs[0]] = before->outputs[0];
      continue;
    }
    kept.push_back(std::move(v));
    if (gathers_weights(kept.back().code)) before = &kept.back();
  }
  c.code = std::move(kept);
}

}  // namespace

void gather_ahead(Compiler& c) {
  leave_out_repeated(c);
  std::vector<size_t> gathers;
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (gathers_weights(c.code[i].code)) gathers.push_back(i);
  }
  if (gathers.empty()) return;
  std::vector<VirtualInstruction> ordered;
  ordered.reserve(c.code.size());
  size_t next = 0;  // index in `gathers`: the one whose old place comes next
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (next == gathers.size() || gathers[next] != i) {
      ordered.push_back(std::move(c.code[i]));
      continue;
    }
    if (next == 0) ordered.push_back(std::move(c.code[i]));
    if (++next < gathers.size()) ordered.push_back(std::move(c.code[gathers[next]]));
  }
  c.code = std::move(ordered);
}

}  // namespace trainctl
