// Places sends and receives on the channels between stages. A channel carries the tensors of one stage's ranks for
// another's, in the order in which the sender's schedule computes them; each is sent as soon as it is computed. When
// the receiver first needs a tensor, it receives everything up to that one on the channel, and the rest at the end of
// the task.
//
// Chunks make channels carry messages for several tasks, in an order that need not be the receiver's:
//
//   stages      0   1   0   1        2 stages of 2 chunks: both channels carry activations and gradients
//   chunks      0 > 0 > 1 > 1
//
// A message that comes before its task is received into its own buffer, which waits for the task. A sender never waits
// for the task, so the schedules of both ends cannot block each other.
//
// Between two chunks of one stage nothing is sent: the receiving chunk takes over the value.
//
// A sent buffer is reused once the receiver has the message. When that is certain follows from the schedule, which
// orders the tasks of all stages so that each has its input (task_times):
//
//   stage 0   F0  F1  F2  F3  F4  F5         F0 is sent to stage 3, past stages 1 and 2
//   stage 1       F0  F1  F2  F3  F4         F4 is the first task that starts after stage 3 has received it
//   stage 2           F0  F1  F2  F3
//   stage 3               F0  F1  F2
//
// A task that waits only for messages received in tasks before it cannot wait in a circle, whatever the tasks take.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"

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

/// Calls `what` while l.task is `task`, the task that a received tensor is for.
template <class What>
void in_task(Lowering& l, const Task& task, const What& what) {
  const Task now = l.task;
  const bool outer = l.recomputing;
  l.task = task;
  l.recomputing = false;
  what();
  l.task = now;
  l.recomputing = outer;
}

TaskKind sending_task(const Transfer& transfer) {
  return transfer.phase == Phase::forward ? TaskKind::forward : TaskKind::backward;
}

Task receiving_task(const Plan& plan, const Transfer& transfer, int micro_batch) {
  return {sending_task(transfer), micro_batch, transfer.to / plan.num_stages};
}

void receive_until(Lowering& l, Inbox& inbox, size_t end) {
  for (; inbox.received < end; ++inbox.received) {
    const Inbox::Message& message = inbox.messages[inbox.received];
    const Transfer& transfer = *message.transfer;
    in_task(l, receiving_task(l.c.plan, transfer, message.micro_batch), [&] {
      const LayoutId layout = l.id(transfer.layout);
      const View view = l.new_tensor(transfer.tensor, layout);
      l.emit(pipeline_instruction(l, Opcode::recv, transfer.tensor, inbox.from_stage), {}, {view});
      l.c.code.back().acknowledged = message.acknowledged;
      l.have(transfer.tensor).push_back({layout, view});
    });
  }
}

/// Returns the messages that stage `from` sends to stage `to` in a step, in order.
Inbox inbox_of(const Plan& plan, const std::vector<Transfer>& transfers, bool trains, int from, int to) {
  Inbox inbox;
  inbox.from_stage = from;
  std::map<std::pair<TaskKind, int>, std::vector<const Transfer*>> of_tasks;  // by kind and chunk
  for (const Transfer& transfer : transfers)
    if (transfer.from % plan.num_stages == from && transfer.to % plan.num_stages == to)
      of_tasks[{sending_task(transfer), transfer.from / plan.num_stages}].push_back(&transfer);
  for (const Task& task : stage_tasks(plan.pipeline(trains), from)) {
    const auto sent = of_tasks.find({task.kind, task.chunk});
    if (sent == of_tasks.end()) continue;
    for (const Transfer* transfer : sent->second) {
      inbox.places[{transfer->tensor, task.micro_batch, transfer->to}] = inbox.messages.size();
      inbox.messages.push_back({transfer, task.micro_batch});
      const Task receiving = receiving_task(plan, *transfer, task.micro_batch);
      inbox.ends_of_tasks[{receiving.kind, receiving.micro_batch, receiving.chunk}] = inbox.messages.size();
    }
  }
  return inbox;
}

/// Sets Message::acknowledged of each message in `inbox`. `back` are the messages in the other direction: a task of the
/// sender has received all messages for it when it ends.
void note_acknowledged(const Plan& plan, bool trains, const Inbox& back, Inbox& inbox) {
  std::map<std::tuple<TaskKind, int, int>, size_t> before;  // by the sender's task: the messages received before it
  size_t received = 0;
  for (const Task& task : stage_tasks(plan.pipeline(trains), inbox.from_stage)) {
    before[{task.kind, task.micro_batch, task.chunk}] = received;
    const auto end = back.ends_of_tasks.find({task.kind, task.micro_batch, task.chunk});
    if (end != back.ends_of_tasks.end()) received = std::max(received, end->second);
  }
  for (Inbox::Message& message : inbox.messages)
    message.acknowledged =
        before.at({sending_task(*message.transfer), message.micro_batch, message.transfer->from / plan.num_stages});
}

/// Computes when the receiver of `inbox` has received each of its messages: the start of the first task that needs this
/// one or a later one.
std::vector<int> receipts(const Plan& plan, const Pipeline& pipeline, const TaskTimes& times, int stage,
                          const Inbox& inbox) {
  std::map<std::tuple<TaskKind, int, int>, int> starts;
  const std::vector<Task> tasks = stage_tasks(pipeline, stage);
  for (size_t t = 0; t < tasks.size(); ++t)
    starts[{tasks[t].kind, tasks[t].micro_batch, tasks[t].chunk}] = times.starts[static_cast<size_t>(stage)][t];
  std::vector<int> received(inbox.messages.size());
  int first = times.length;
  for (size_t m = received.size(); m-- > 0;) {
    const Task task = receiving_task(plan, *inbox.messages[m].transfer, inbox.messages[m].micro_batch);
    received[m] = first = std::min(first, starts.at({task.kind, task.micro_batch, task.chunk}));
  }
  return received;
}

/// Computes how many of the messages in `inbox`, from stage `from` to stage `to`, stage `to` has received before each
/// task of stage `from` starts.
ReceiverProgress receiver_of(const Plan& plan, const Pipeline& pipeline, const TaskTimes& times, int from, int to,
                             const Inbox& inbox) {
  ReceiverProgress receiver{to, {}};
  const std::vector<int> received = receipts(plan, pipeline, times, to, inbox);
  const std::vector<Task> tasks = stage_tasks(pipeline, from);
  for (size_t t = 0; t < tasks.size(); ++t) {
    const int start = times.starts[static_cast<size_t>(from)][t];
    const auto before = std::lower_bound(received.begin(), received.end(), start);
    receiver.received[{tasks[t].kind, tasks[t].micro_batch, tasks[t].chunk}] =
        static_cast<size_t>(before - received.begin());
  }
  return receiver;
}

/// Returns the number of messages of this stage that stage `to` has received before the current task starts.
size_t received_before(const Lowering& l, int to) {
  const auto receiver = std::find_if(l.receiver_progress.begin(), l.receiver_progress.end(),
                                     [&](const ReceiverProgress& candidate) { return candidate.to_stage == to; });
  check(receiver != l.receiver_progress.end(), "a stage must list all stages that it sends to");
  return receiver->received.at({l.task.kind, l.task.micro_batch, l.task.chunk});
}

}  // namespace

/// Determines which tensors this stage sends and receives, and how far each receiver has come when a message is sent.
void open_channels(Lowering& l) {
  const Plan& plan = l.c.plan;
  l.transfers = plan_transfers(l.c.graph, plan, l.c.cost);
  const bool trains = l.c.trains();
  std::set<int> senders, receivers;
  for (const Transfer& transfer : l.transfers) {
    const int from = transfer.from % plan.num_stages, to = transfer.to % plan.num_stages;
    if (from == l.c.stage) l.outgoing.emplace(transfer.tensor, &transfer);
    if (from == to) continue;
    if (to == l.c.stage) senders.insert(from);
    if (from == l.c.stage) receivers.insert(to);
  }
  for (int from : senders) {
    Inbox inbox = inbox_of(plan, l.transfers, trains, from, l.c.stage);
    note_acknowledged(plan, trains, inbox_of(plan, l.transfers, trains, l.c.stage, from), inbox);
    l.inboxes.push_back(std::move(inbox));
  }
  if (receivers.empty()) return;
  const Pipeline pipeline = plan.pipeline(trains);
  const TaskTimes times = task_times(pipeline);
  for (int to : receivers)
    l.receiver_progress.push_back(
        receiver_of(plan, pipeline, times, l.c.stage, to, inbox_of(plan, l.transfers, trains, l.c.stage, to)));
}

bool receive(Lowering& l, TensorId tensor) {
  for (Inbox& inbox : l.inboxes) {
    const auto place = inbox.places.find({tensor, l.task.micro_batch, l.virtual_stage()});
    if (place == inbox.places.end()) continue;
    receive_until(l, inbox, place->second + 1);
    return true;
  }
  return false;
}

void receive_rest(Lowering& l) {
  for (Inbox& inbox : l.inboxes) {
    const auto end = inbox.ends_of_tasks.find({l.task.kind, l.task.micro_batch, l.task.chunk});
    if (end != inbox.ends_of_tasks.end()) receive_until(l, inbox, end->second);
  }
}

/// Sends the outputs of a node to the stages that read them, each in the layout that the transfer has. A later chunk of
/// this stage gets the value without a message.
void send_outputs(Lowering& l, const Node& node) {
  for (TensorId tensor : node.outputs) {
    const auto [begin, end] = l.outgoing.equal_range(tensor);
    for (auto it = begin; it != end; ++it) {
      const Transfer& transfer = *it->second;
      const LayoutId layout = l.id(transfer.layout);
      const View view = bring(l, tensor, layout, l.c.formats[static_cast<size_t>(tensor)]);
      const int to = transfer.to % l.c.plan.num_stages;
      if (to != l.c.stage) {
        l.emit(pipeline_instruction(l, Opcode::send, tensor, to), {view}, {});
        l.c.code.back().acknowledged = received_before(l, to);
        continue;
      }
      in_task(l, receiving_task(l.c.plan, transfer, l.task.micro_batch), [&] {
        l.have(tensor).push_back({layout, view});
      });
    }
  }
}

}  // namespace trainctl
