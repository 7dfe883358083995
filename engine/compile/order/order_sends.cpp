// A send's buffer belongs to the channel until an instruction waits for the send. These instructions wait:
//   - a recv, for the sends that its peer has received before it sent this: that never takes time;
//   - a task's first send on a channel, for the sends of the task two before it on that channel, so that at most two
//     tasks' tensors are in flight. If the receiver is several stages away, more are: the task waits only for sends
//     that the receiver has received in tasks before it (pipeline.cpp). Not in training with chunks: there both ends
//     run more than two tasks ahead of each other, and the messages of the backward pass release those of the forward
//     pass;
//   - a send to a rank of the same stage, which passes blocks of keys on (lower/exchange_keys.cpp), for all sends
//     before it but the last few: the neighbour received those a step ago;
//   - a `wait` at the end of the step, for the rest.
//
// A recv from a rank of the same stage also waits for the last kernel before it in the list. The ranks of a ring are
// equally far, so the message is not sent earlier, and a message that is awaited takes multiprocessors from kernels.
#include <algorithm>
#include <map>
#include <tuple>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// Keys, values and their gradients of one step of a ring.
constexpr size_t kRingMessages = 4;

using TaskKey = std::tuple<Phase, int, int>;  // and micro-batch and chunk

/// The sends of one channel, in order.
struct Channel {
  std::vector<int> sends;
  std::vector<size_t> begins;  ///< index of the first send of each task, in `sends`
  TaskKey last;
  size_t awaited = 0;  ///< how many of the first `sends` are awaited

  void add(const TaskKey& key, int send) {
    if (begins.empty() || last != key) begins.push_back(sends.size());
    last = key;
    sends.push_back(send);
  }
  void wait_for_first(size_t count, Instruction& waiting) {
    for (; awaited < std::min(count, sends.size()); ++awaited) waiting.waits.push_back(sends[awaited]);
  }
};

}  // namespace

void order_sends(Compiler& c) {
  const auto is_in_ring = [&](const Instruction& code) {
    return c.plan.servers == 0 && code.peer / c.plan.mesh.size() == c.stage;
  };
  const bool is_bounded = !c.trains() || c.plan.chunks == 1;
  std::map<int, Channel> channels;
  int last_kernel = -1;
  for (int i = 0; i < static_cast<int>(c.code.size()); ++i) {
    Instruction& code = c.code[i].code;
    if (code.opcode == Opcode::send) {
      Channel& channel = channels[code.peer];
      channel.add({code.phase, code.micro_batch, code.chunk}, i);
      if (is_in_ring(code)) {
        channel.wait_for_first(channel.sends.size() - std::min(channel.sends.size(), 1 + kRingMessages), code);
        continue;
      }
      const size_t tasks = channel.begins.size();
      const size_t received = c.code[static_cast<size_t>(i)].acknowledged;
      if (is_bounded && tasks > 2) channel.wait_for_first(std::min(channel.begins[tasks - 2], received), code);
    } else if (code.opcode == Opcode::recv) {
      channels[code.peer].wait_for_first(c.code[i].acknowledged, code);
      if (is_in_ring(code) && last_kernel >= 0) code.waits.push_back(last_kernel);
    } else if (code.opcode == Opcode::kernel && code.purpose != Purpose::weights) {
      last_kernel = i;
    }
  }
  VirtualInstruction last;
  last.code.opcode = Opcode::wait;
  last.code.name = "wait for sends";
  last.code.phase = c.trains() ? Phase::backward : Phase::forward;
  for (auto& [peer, channel] : channels) channel.wait_for_first(channel.sends.size(), last.code);
  if (!last.code.waits.empty()) c.code.push_back(std::move(last));
}

}  // namespace trainctl
