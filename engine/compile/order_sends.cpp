// A send's buffer belongs to the channel until an instruction waits for the send. These instructions wait:
//   - a task's first send on a channel, for all sends of the task two before it on that channel: at most two tasks'
//     tensors are in flight, and no task can wait for itself;
//   - the recv of a micro-batch's gradient, for what was sent to that peer in the same micro-batch's forward pass: the
//     peer has received it, or there would be no gradient;
//   - a `wait` at the end of the step, for the rest.
#include <map>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

using TaskKey = std::pair<Phase, int>;

/// The sends of one channel, task by task.
struct Channel {
  std::vector<std::pair<TaskKey, std::vector<int>>> tasks;

  void add(const TaskKey& key, int send) {
    if (tasks.empty() || tasks.back().first != key) tasks.push_back({key, {}});
    tasks.back().second.push_back(send);
  }
};

void wait_for(std::vector<int>& sends, Instruction& waiting) {
  waiting.waits.insert(waiting.waits.end(), sends.begin(), sends.end());
  sends.clear();
}

}  // namespace

void order_sends(Compiler& c) {
  std::map<int, Channel> channels;
  for (int i = 0; i < static_cast<int>(c.code.size()); ++i) {
    Instruction& code = c.code[i].code;
    const TaskKey key{code.phase, code.micro_batch};
    if (code.opcode == Opcode::send) {
      Channel& channel = channels[code.peer];
      channel.add(key, i);
      if (channel.tasks.size() > 2) wait_for(channel.tasks[channel.tasks.size() - 3].second, code);
    } else if (code.opcode == Opcode::recv && code.phase == Phase::backward) {
      const auto channel = channels.find(code.peer);
      if (channel == channels.end()) continue;
      for (auto& [task, sends] : channel->second.tasks) {
        if (task == TaskKey{Phase::forward, code.micro_batch}) wait_for(sends, code);
      }
    }
  }
  VirtualInstruction last;
  last.code.opcode = Opcode::wait;
  last.code.name = "wait for sends";
  last.code.phase = c.trains() ? Phase::backward : Phase::forward;
  for (auto& [peer, channel] : channels) {
    for (auto& [task, sends] : channel.tasks) wait_for(sends, last.code);
  }
  if (!last.code.waits.empty()) c.code.push_back(std::move(last));
}

}  // namespace trainctl
