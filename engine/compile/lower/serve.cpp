// parameter_server: the messages between workers and servers. A step is pull, compute, push, update:
//
//   worker 0   pull conv1, fc | forward, backward            | push fc        | push conv1    | loss
//   server 0   send to 0, 1   | recv fc of 0, of 1, add them | update fc      | … conv1 …     | loss
//
// A worker pulls a layer's weights right before their first use, and pushes a layer's gradients once its last
// contribution is in, under the rest of the backward pass. A server adds the workers' gradients in the order of their
// ranks, so the sum has the same bits in every run and for any number of servers. Without clip_norm it updates a bucket
// immediately.
//
// A server's messages are the counterparts of those of worker 0, whose program determines their order.
//
// Asynchronous: the programs are those of one worker with its servers, and each worker runs them on its own. A server
// answers and takes pushes in an event loop (engine/train/servers), and runs its program once a push.
//
// Servers that hold only tables have no instructions: the workers' programs are those of data_parallel, in which each
// worker has a window of rows of its own (engine/planning/served_tables.h).
#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/program_kernels.h"
#include "engine/plan/served.h"

namespace trainctl {
namespace {

int rank_of_server(const Compiler& c, int server) { return c.plan.ranks + server; }

Instruction message(Opcode opcode, const std::string& tensor, Purpose purpose, int peer) {
  Instruction i = once_per_step(opcode, std::string(to_string(opcode)) + " " + tensor);
  i.purpose = purpose;
  i.peer = peer;
  if (purpose == Purpose::weights) i.phase = Phase::forward;
  return i;
}

/// A view of part `part` of a bucket in a worker's range of the whole bucket, with the name that the server uses for
/// it.
View part_of(const Compiler& c, int bucket, int part, BufferId range, const std::string& name, DType type) {
  const BucketPlan& plan = *c.buckets[static_cast<size_t>(bucket)].plan;
  const int64_t elements = plan.elements / static_cast<int64_t>(plan.servers.size()), first = part * elements;
  View view = c.flat(range, first, elements, name, type);
  view.operand.global_shape = {plan.elements};
  view.operand.global_offset = {first};
  return view;
}

/// A view of the part of the bucket that this server owns, in the server's own range.
View kept_part(const Compiler& c, int bucket, BufferId range, const std::string& name, DType type) {
  const Bucket& b = c.program.buckets[static_cast<size_t>(bucket)];
  View view = c.flat(range, 0, b.shard_elements(), name, type);
  view.operand.global_shape = {b.elements};
  view.operand.global_offset = {b.shard * b.shard_elements()};
  return view;
}

class Server {
 public:
  explicit Server(Lowering& l) : l_(l), c_(l.c) {}

  /// Sends this server's part of a bucket to all workers, in the order in which worker 0 pulls buckets: first layers
  /// first.
  void answer_pull(int bucket) {
    const RankBucket& b = c_.buckets[static_cast<size_t>(bucket)];
    const View part = kept_part(c_, bucket, b.read(), "weights." + b.plan->name, b.read_type());
    for (int worker = 0; worker < c_.plan.ranks; ++worker)
      c_.emit(message(Opcode::send, part.operand.tensor, Purpose::weights, worker), {part}, {});
  }

  /// Receives the gradients of a bucket from its workers and adds them, in the order of the workers.
  void take_pushes(int bucket) {
    const RankBucket& b = c_.buckets[static_cast<size_t>(bucket)];
    const std::string name = "grad." + b.plan->name;
    View sum = kept_part(c_, bucket, b.gradients, name, DType::f32);
    for (int worker : b.plan->pushers(c_.plan.mesh)) {
      const bool direct = b.plan->type == DType::f32;
      View pushed = sum;
      if (!direct) {
        const int64_t bytes =
            c_.program.buckets[static_cast<size_t>(bucket)].shard_elements() * byte_size(b.plan->type);
        pushed = kept_part(c_, bucket, c_.new_buffer(BufferKind::scratch, bytes), name, b.plan->type);
      }
      c_.emit(message(Opcode::recv, name, Purpose::gradient, worker), {}, {pushed});
      if (!direct) add(name, pushed, sum);
      sum.operand.accumulate = true;
    }
  }

  /// With asynchronous servers: receives the squared norm of the pushed gradients from the worker, which has all of
  /// them.
  View take_norm() {
    const View norm = c_.flat(c_.new_buffer(BufferKind::scratch, byte_size(DType::f32)), 0, 1, "clip_norm");
    c_.emit(message(Opcode::recv, "clip_norm", Purpose::clip, 0), {}, {norm});
    return norm;
  }

  /// Returns the sum of the squares of all gradients, summed over the servers, each of which owns a part of the
  /// gradients.
  View sum_of_squares() {
    View norm = c_.flat(c_.new_buffer(BufferKind::scratch, byte_size(DType::f32)), 0, 1, "clip_norm");
    for (int b = 0; b < static_cast<int>(c_.buckets.size()); ++b) {
      const std::string name = "grad." + c_.program.buckets[static_cast<size_t>(b)].name;
      const View part = kept_part(c_, b, c_.buckets[static_cast<size_t>(b)].gradients, name, DType::f32);
      c_.emit(once_per_step(Opcode::kernel, "sum_squares " + name, &sum_squares_kernel), {part}, {norm});
      norm.operand.accumulate = true;
    }
    if (c_.buckets.empty()) c_.emit(once_per_step(Opcode::kernel, "zero clip_norm", &zero_kernel), {}, {norm});
    norm.operand.accumulate = false;
    std::vector<int> servers(static_cast<size_t>(c_.plan.servers));
    std::iota(servers.begin(), servers.end(), rank_of_server(c_, 0));
    all_reduce_numbers(l_, "all_reduce clip_norm", Purpose::clip, servers, norm);
    return norm;
  }

 private:
  void add(const std::string& name, const View& pushed, const View& sum) {
    const bool adds = sum.operand.accumulate;
    Instruction i = once_per_step(Opcode::kernel, (adds ? "accumulate " : "copy ") + name,
                                  adds ? &accumulate_kernel : &copy_slice_kernel);
    if (!adds) i.attrs = copy_of(num_elements(sum.operand.shape));
    c_.emit(std::move(i), {pushed}, {sum});
  }

  Lowering& l_;
  Compiler& c_;
};

/// The buckets that worker 0 pulls from this server, and the buckets that it pushes to this server, in its order.
struct ServedBuckets {
  std::vector<int> pulled, pushed;
};

/// The buckets that workers pull from this server and push to it, from the messages in a worker's program.
ServedBuckets served_buckets(const Compiler& c) {
  const EvaluationOf of{c.trained, c.keeps_training_state};
  const Program worker = compile(c.graph, c.plan, c.cost, 0, &c.graph == &c.trained ? nullptr : &of);
  ServedBuckets served;
  for (const Instruction& i : worker.instructions) {
    if ((i.opcode != Opcode::send && i.opcode != Opcode::recv) || i.peer != c.rank || i.purpose == Purpose::clip)
      continue;
    const bool is_pull = i.opcode == Opcode::recv;
    const std::string& tensor = is_pull ? i.outputs[0].tensor : i.inputs[0].tensor;
    const std::string name = tensor.substr(tensor.find('.') + 1);
    const auto at = std::find_if(c.program.buckets.begin(), c.program.buckets.end(),
                                 [&](const Bucket& b) { return b.name == name; });
    check(at != c.program.buckets.end(), "a worker must ask a server only for buckets that it stores: " + i.name);
    (is_pull ? served.pulled : served.pushed).push_back(static_cast<int>(at - c.program.buckets.begin()));
  }
  return served;
}

}  // namespace

void pull(Lowering& l, int bucket) {
  const RankBucket& b = l.c.buckets[static_cast<size_t>(bucket)];
  const std::string name = "weights." + b.plan->name;
  for (size_t part = 0; part < b.plan->servers.size(); ++part)
    l.c.emit(message(Opcode::recv, name, Purpose::weights, rank_of_server(l.c, b.plan->servers[part])), {},
             {part_of(l.c, bucket, static_cast<int>(part), b.read(), name, b.read_type())});
}

void push(Lowering& l, int bucket, BufferId range) {
  const BucketPlan& plan = *l.c.buckets[static_cast<size_t>(bucket)].plan;
  const std::vector<int> pushers = plan.pushers(l.c.plan.mesh);
  if (std::find(pushers.begin(), pushers.end(), l.c.rank) == pushers.end()) return;  // another has the same gradients
  const std::string name = "grad." + plan.name;
  for (size_t part = 0; part < plan.servers.size(); ++part)
    l.c.emit(message(Opcode::send, name, Purpose::gradient, rank_of_server(l.c, plan.servers[part])),
             {part_of(l.c, bucket, static_cast<int>(part), range, name, plan.type)}, {});
}

void push_norm(Lowering& l, const View& norm) {
  for (int server = 0; server < l.c.plan.servers; ++server)
    l.c.emit(message(Opcode::send, "clip_norm", Purpose::clip, rank_of_server(l.c, server)), {norm}, {});
}

void lower_server(Lowering& l) {
  if (serves_tables_alone(l.c.plan)) return;  // rows of tables are moved outside of programs
  Server server(l);
  const ServedBuckets served = served_buckets(l.c);
  for (int bucket : served.pulled) server.answer_pull(bucket);
  const bool clips = l.c.plan.numerics.optimizer.clip_norm > 0;
  for (int bucket : served.pushed) {
    server.take_pushes(bucket);
    if (!clips) update(l, bucket, l.c.program.buckets[static_cast<size_t>(bucket)].piece(0), {});
  }
  if (l.c.has_loss()) finish_loss(l);
  if (!l.c.trains() || !clips) return;
  const View norm = l.c.plan.is_asynchronous() ? server.take_norm() : server.sum_of_squares();
  for (int bucket : served.pushed) update(l, bucket, l.c.program.buckets[static_cast<size_t>(bucket)].piece(0), norm);
}

}  // namespace trainctl
