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
// On a GPU a message that is awaited takes multiprocessors from kernels. So recvs also wait for a kernel before them in
// the list, which cannot block: a rank that runs its list in order does no less.
//   - A recv from a rank of the same stage waits for the last one. The ranks of a ring are equally far, so the message
//     is not sent earlier.
//   - A recv from another stage starts as long before its use as the message needs: it waits for the last kernel after
//     which other kernels take kAhead times as long as the transfer.
//
//   kernels   k1  k2  k3  k4  k5  k6          k6 uses the message; k4 and k5 take as long as its transfer
//   recv                  recv····
#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "engine/compile/order/kernel_seconds.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// Keys, values and their gradients of one step of a ring.
constexpr size_t kRingMessages = 4;

/// For messages that come in turn, and for kernels that are shorter than predicted.
constexpr double kAhead = 2;

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

/// Kernels of the compute stream.
bool computes(const Instruction& code) { return code.opcode == Opcode::kernel && code.purpose != Purpose::weights; }

/// The kernel after which a message from another stage is awaited; -1: it is awaited from the start. The first ranks of
/// both stages represent all, because ranks of a class have equal programs.
int kernel_before(const Compiler& c, int recv) {
  const Machine& machine = c.cost.machine();
  const Instruction& message = c.code[static_cast<size_t>(recv)].code;
  const std::array<int, 2> ranks = {c.global_rank(c.stage, 0), c.global_rank(message.peer / c.plan.mesh.size(), 0)};
  const Bytes bytes{static_cast<double>(message.bytes())};
  Seconds left = kAhead * send_time(machine, bytes, spread_of(machine, ranks));
  for (int i = recv - 1; i >= 0; --i) {
    const Instruction& code = c.code[static_cast<size_t>(i)].code;
    if (!computes(code)) continue;
    if (left <= Seconds{}) return i;
    left = left - kernel_seconds(machine, code);
  }
  return -1;
}

}  // namespace

void order_sends(Compiler& c) {
  const auto is_in_ring = [&](const Instruction& code) {
    return c.plan.servers == 0 && code.peer / c.plan.mesh.size() == c.stage;
  };
  const bool is_late = c.cost.machine().kind == DeviceKind::cuda;
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
      int kernel = -1;
      if (is_in_ring(code)) kernel = last_kernel;
      if (is_late && code.purpose == Purpose::pipeline && !is_in_ring(code)) kernel = kernel_before(c, i);
      if (kernel >= 0) code.waits.push_back(kernel);
    } else if (computes(code)) {
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
