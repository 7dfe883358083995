// parameter_server: verifies that workers pull and push each element that servers own once, in the right order.
// verify_messages verifies that both ends of a message agree on order and bytes.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/compile/verify/verify.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

/// Elements [begin, end) of a bucket.
struct Part {
  int64_t begin = 0, end = 0;
  friend bool operator==(const Part&, const Part&) = default;
};

std::string text(const Part& part) {
  return "elements " + std::to_string(part.begin) + " to " + std::to_string(part.end);
}

/// By bucket and by the server's rank: the part of the bucket that the server owns.
using ServedHolders = std::map<std::string, std::map<int, Part>>;

bool overlap(const Operand& a, const Operand& b) {
  return a.offset < b.offset + b.bytes() && b.offset < a.offset + a.bytes();
}

class Served {
 public:
  Served(const RankClasses& classes, Faults& faults) : classes_(classes), faults_(faults) {
    for (int rank = 0; rank < classes.num_ranks(); ++rank) {
      const Program& p = classes.program_of(rank);
      if (p.server < 0) {
        ++workers_;
        continue;
      }
      for (const Bucket& b : p.buckets)
        if (b.served) holders_[b.name][rank] = {b.shard * b.shard_elements(), (b.shard + 1) * b.shard_elements()};
    }
  }

  void verify() {
    for (const Program& program : classes_.programs) {
      p_ = &program;
      for (const Bucket& b : program.buckets)
        if (b.served && program.server < 0) worker(b);
    }
    for (const Program& program : classes_.programs) {
      p_ = &program;
      for (const Bucket& b : program.buckets)
        if (b.served && program.server >= 0) server(b);
    }
  }

 private:
  struct Message {
    int index = -1, peer = -1;
    const Operand* operand = nullptr;
  };

  /// Returns the sends (or the recvs, by `opcode`) that move the tensor.
  std::vector<Message> messages(Opcode opcode, const std::string& tensor) const {
    std::vector<Message> found;
    for (size_t i = 0; i < p_->instructions.size(); ++i) {
      const Instruction& code = p_->instructions[i];
      if (code.opcode != opcode) continue;
      const Operand& operand = opcode == Opcode::send ? code.inputs[0] : code.outputs[0];
      if (operand.tensor == tensor) found.push_back({static_cast<int>(i), code.peer, &operand});
    }
    return found;
  }

  static Part part_of(const Operand& operand) {
    return {operand.global_offset[0], operand.global_offset[0] + num_elements(operand.shape)};
  }

  /// Checks a worker's pulls and pushes of a bucket, and that nothing writes the gradients after the push.
  void worker(const Bucket& b) {
    const int64_t read = b.has_compute_copy() ? b.compute_offset : b.weights_offset;
    exchange(b, messages(Opcode::recv, "weights." + b.name), read, "pulls");
    if (b.gradients_offset < 0) return;
    const std::vector<Message> pushes = messages(Opcode::send, "grad." + b.name);
    if (pushes.empty()) return;  // another worker pushes the same gradients
    exchange(b, pushes, b.gradients_offset, "pushes");
    for (int rank : classes_.ranks[static_cast<size_t>(classes_.class_of[static_cast<size_t>(p_->rank)])])
      pushers_[b.name].insert(rank);
    for (const Message& push : pushes)
      for (size_t i = static_cast<size_t>(push.index) + 1; i < p_->instructions.size(); ++i)
        for (const Operand& out : p_->instructions[i].outputs)
          if (overlap(out, *push.operand))
            fault(static_cast<int>(i), p_->instructions[i].name + " writes grad." + b.name + " after it was pushed");
  }

  /// Verifies that the messages cover the whole bucket, each with exactly the part that its server owns. `base` is the
  /// offset of the bucket in the arena.
  void exchange(const Bucket& b, const std::vector<Message>& parts, int64_t base, const std::string& does) {
    std::map<int, Part> open = holders_[b.name];
    for (const Message& m : parts) {
      const Part part = part_of(*m.operand);
      const auto holder = open.find(m.peer);
      if (holder == open.end() || !(holder->second == part)) {
        fault(m.index,
              does + " " + text(part) + " of " + b.name + " where rank " + std::to_string(m.peer) +
                  (holder == open.end() ? " has no remaining shard of it" : " stores " + text(holder->second)));
        continue;
      }
      open.erase(holder);
      if (m.operand->offset != base + part.begin * byte_size(m.operand->dtype))
        fault(m.index, does + " " + text(part) + " of " + b.name + " at a different offset");
    }
    for (const auto& [rank, part] : open)
      fault(-1,
            "never " + does + " " + text(part) + " of " + b.name + ", which rank " + std::to_string(rank) + " stores");
  }

  void server(const Bucket& b) {
    tile(b);
    answers_pulls(b);
    if (b.gradients_offset >= 0) takes_pushes(b);
  }

  /// Verifies that each element of the bucket is owned by exactly one server.
  void tile(const Bucket& b) {
    std::map<int64_t, int64_t> parts;
    int64_t stored = 0;
    for (const auto& [rank, part] : holders_[b.name]) {
      parts[part.begin] = part.end;
      stored += part.end - part.begin;
    }
    int64_t end = 0;
    for (const auto& [begin, last] : parts)
      if (begin == end) end = last;
    if (end != b.elements || stored != b.elements)
      fault(-1, b.name + " has " + std::to_string(b.elements) + " elements, but the servers store " +
                    std::to_string(stored));
  }

  /// Verifies that each worker receives the weights once, before they change.
  void answers_pulls(const Bucket& b) {
    std::set<int> answered;
    const int updated = update_of(b);
    for (const Message& m : messages(Opcode::send, "weights." + b.name)) {
      if (!answered.insert(m.peer).second)
        fault(m.index, "sends weights." + b.name + " to rank " + std::to_string(m.peer) + " twice in one step");
      if (updated >= 0 && m.index > updated) fault(m.index, "sends weights." + b.name + " after their update");
    }
    if (static_cast<int>(answered.size()) != workers_)
      fault(-1, "sends weights." + b.name + " to " + std::to_string(answered.size()) + " of " +
                    std::to_string(workers_) + " workers");
  }

  /// Verifies that the gradients of each worker that pushes are added once, before the update.
  void takes_pushes(const Bucket& b) {
    std::set<int> taken;
    const int updated = update_of(b);
    int terms = 0;
    for (const Message& m : messages(Opcode::recv, "grad." + b.name)) {
      taken.insert(m.peer);
      const int added = added_by(b, m);
      if (added < 0) {
        fault(m.index, "the gradients of " + b.name + " from rank " + std::to_string(m.peer) + " are not added");
        continue;
      }
      if (updated >= 0 && added > updated) fault(added, "adds to grad." + b.name + " after the update");
      const bool adds = p_->instructions[static_cast<size_t>(added)].outputs[0].accumulate;
      if (adds && terms == 0) fault(added, "adds to grad." + b.name + " of the previous step");
      if (!adds && terms > 0) fault(added, "overwrites earlier gradients in grad." + b.name);
      ++terms;
    }
    const std::set<int>& pushing = pushers_[b.name];
    if (taken != pushing || terms != static_cast<int>(pushing.size()) || terms != b.pushers)
      fault(-1, "adds " + std::to_string(terms) + " gradients of " + b.name + ": " + std::to_string(pushing.size()) +
                    " workers push, but " + std::to_string(b.pushers) + " contribute terms");
  }

  /// The instruction that adds or copies the whole message to the gradients; -1: none.
  int added_by(const Bucket& b, const Message& m) const {
    const auto is_sum = [&](const Operand& o) {
      return o.offset == b.gradients_offset && num_elements(o.shape) == b.shard_elements() && o.dtype == b.kept_type;
    };
    if (is_sum(*m.operand)) return m.index;
    for (size_t i = static_cast<size_t>(m.index) + 1; i < p_->instructions.size(); ++i) {
      const Instruction& code = p_->instructions[i];
      for (const Operand& in : code.inputs) {
        if (in.offset != m.operand->offset || in.bytes() != m.operand->bytes()) continue;
        const bool adds = kernel_of(code) == &accumulate_kernel || kernel_of(code) == &copy_slice_kernel;
        return adds && is_sum(code.outputs[0]) ? static_cast<int>(i) : -1;
      }
      for (const Operand& out : code.outputs)
        if (overlap(out, *m.operand)) return -1;
    }
    return -1;
  }

  int update_of(const Bucket& b) const {
    for (size_t i = 0; i < p_->instructions.size(); ++i)
      if (is_update(p_->instructions[i]) && p_->instructions[i].outputs[0].offset == b.weights_offset)
        return static_cast<int>(i);
    return -1;
  }

  void fault(int index, std::string message) { faults_.push_back({p_->rank, index, std::move(message)}); }

  const RankClasses& classes_;
  Faults& faults_;
  int workers_ = 0;
  ServedHolders holders_;
  std::map<std::string, std::set<int>> pushers_;  ///< by bucket
  const Program* p_ = nullptr;
};

}  // namespace

void verify_served(const RankClasses& classes, Faults& faults) { Served(classes, faults).verify(); }

}  // namespace trainctl
