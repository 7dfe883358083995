// Both ends of the channels between stages. A channel carries tensors in the order of plan_transfers. The producer
// sends each tensor as soon as it is computed. When the consumer first needs a tensor, it receives everything up to
// that one on the channel, and the rest at the end of the task.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/compile/lowering.h"

namespace trainctl {
namespace {

Instruction pipeline_instruction(const Lowering& l, Opcode opcode, TensorId tensor, int peer_stage) {
  Instruction i;
  i.opcode = opcode;
  i.name = std::string(to_string(opcode)) + " " + l.c.graph.tensors[tensor].name;
  i.peer = l.c.global_rank(peer_stage, l.c.rank_in_stage);
  i.purpose = Purpose::pipeline;
  return i;
}

/// Receives from one stage, up to and including number `last` of l.incoming.
void receive_until(Lowering& l, int stage, size_t last) {
  size_t& next = l.received[stage];
  const bool outer = l.recomputing;
  l.recomputing = false;
  for (; next <= last && next < l.incoming.size(); ++next) {
    const Transfer& transfer = l.incoming[next];
    if (transfer.from != stage || transfer.phase != l.task.phase) continue;
    const LayoutId layout = l.id(transfer.layout);
    const View view = l.new_tensor(transfer.tensor, layout);
    l.emit(pipeline_instruction(l, Opcode::recv, transfer.tensor, stage), {}, {view});
    l.have(transfer.tensor).push_back({layout, view});
  }
  l.recomputing = outer;
}

}  // namespace

void start_receiving(Lowering& l) { l.received.clear(); }

bool receive(Lowering& l, TensorId tensor) {
  for (size_t i = 0; i < l.incoming.size(); ++i) {
    if (l.incoming[i].tensor != tensor || l.incoming[i].phase != l.task.phase) continue;
    receive_until(l, l.incoming[i].from, i);
    return true;
  }
  return false;
}

void receive_rest(Lowering& l) {
  for (int stage = 0; stage < l.c.plan.num_stages; ++stage) receive_until(l, stage, l.incoming.size());
}

void send_outputs(Lowering& l, const Node& node) {
  for (TensorId tensor : node.outputs) {
    for (const Transfer& transfer : l.outgoing) {
      if (transfer.tensor != tensor) continue;
      const View view = bring(l, tensor, l.id(transfer.layout), l.c.formats[static_cast<size_t>(tensor)]);
      l.emit(pipeline_instruction(l, Opcode::send, tensor, transfer.to), {view}, {});
    }
  }
}

}  // namespace trainctl
