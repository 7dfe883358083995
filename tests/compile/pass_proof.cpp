// Proves each pass of the compiler separately, so that a fault names the pass that caused it.
#include "tests/compile/pass_proof.h"

#include <algorithm>
#include <memory>
#include <set>

#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/compile/compiler.h"
#include "engine/compile/verify/verify.h"

namespace trainctl {
namespace {

using Compilers = std::vector<std::unique_ptr<Compiler>>;

constexpr size_t kMostFaultsShown = 5;

// Passes that may change the collectives or the order of communication.
const std::set<std::string_view> kMovesCommunication = {"lower_stage",     "gather_ahead",   "head_in_pieces",
                                                        "order_gradients", "make_in_pieces", "update_early",
                                                        "join_statistics"};

std::string text_of(const std::vector<ProgramFault>& faults) {
  std::string text;
  for (size_t i = 0; i < std::min(faults.size(), kMostFaultsShown); ++i) text += to_string(faults[i]) + "\n";
  if (faults.size() > kMostFaultsShown) text += std::to_string(faults.size() - kMostFaultsShown) + " more\n";
  return text;
}

bool has_places(const Compiler& c) {
  return std::any_of(c.buffers.begin(), c.buffers.end(), [](const VirtualBuffer& b) { return b.offset >= 0; });
}

/// Sets the offsets of buckets and variables, given those of the buffers in `at`.
void set_places(const Compiler& c, const std::vector<int64_t>& at, Program& p) {
  const auto place = [&](BufferId buffer) { return buffer < 0 ? -1 : at[buffer]; };
  p.scalars_offset = place(c.scalars);
  p.loss_offset = place(c.loss);
  for (const Metric& metric : c.graph.metrics) p.metrics.push_back({metric.name, metric.scale});
  for (size_t b = 0; b < p.buckets.size(); ++b) {
    Bucket& bucket = p.buckets[b];
    bucket.weights_offset = place(c.buckets[b].weights);
    bucket.compute_offset = place(c.buckets[b].compute);
    bucket.gradients_offset = place(c.buckets[b].gradients);
    bucket.sums_offset = place(c.buckets[b].sums);
    bucket.average_offset = place(c.buckets[b].average);
    bucket.optimizer_offsets.clear();
    for (BufferId state : c.buckets[b].optimizer) bucket.optimizer_offsets.push_back(place(state));
  }
  for (size_t v = 0; v < p.variables.size(); ++v) {
    Variable& variable = p.variables[v];
    if (variable.bucket < 0) {
      variable.arena_offset = place(c.states[v]);
    } else if (const Bucket& bucket = p.buckets[variable.bucket];
               bucket.weights_offset >= 0 && !bucket.weights_are_cut()) {
      variable.arena_offset = bucket.weights_offset + variable.bucket_element * byte_size(variable.dtype);
    }
  }
}

std::vector<int> sends_of(const Program& p) {
  std::vector<int> sends;
  for (size_t i = 0; i < p.instructions.size(); ++i)
    if (p.instructions[i].opcode == Opcode::send) sends.push_back(static_cast<int>(i));
  return sends;
}

void wait_for_all_sends(Program& p) {
  Instruction last;
  last.opcode = Opcode::wait;
  last.waits = sends_of(p);
  if (!last.waits.empty()) p.instructions.push_back(std::move(last));
}

/// Lets updates wait for sends. A parameter server updates weights that it has sent, and order_streams makes the update
/// wait for that.
void updates_wait_for_sends(Program& p) {
  const std::vector<int> sends = sends_of(p);
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    Instruction& code = p.instructions[i];
    if (!is_update(code)) continue;
    const auto end = std::lower_bound(sends.begin(), sends.end(), static_cast<int>(i));
    code.waits.insert(code.waits.end(), sends.begin(), end);
  }
}

/// The program so far in runnable form: buffers that are not placed yet get separate places.
Program spread_out(const Compiler& c, bool sends_are_ordered) {
  Program p = c.program;
  if (!p.instructions.empty()) return p;  // order_streams has run
  std::vector<int64_t> at;
  if (has_places(c)) {
    for (const VirtualBuffer& buffer : c.buffers) at.push_back(buffer.offset);
  } else {
    int64_t end = 0;
    for (const VirtualBuffer& buffer : c.buffers) {
      at.push_back(end);
      end += round_up(buffer.bytes, int64_t{64}) + 64;
    }
    p.arena_bytes = end;
    p.memory = {};
    p.memory.buffers = end;
    set_places(c, at, p);
  }
  for (const VirtualInstruction& v : c.code) {
    Instruction code = v.code;
    for (size_t i = 0; i < v.inputs.size(); ++i) code.inputs[i].offset += at[v.inputs[i]];
    for (size_t o = 0; o < v.outputs.size(); ++o) code.outputs[o].offset += at[v.outputs[o]];
    p.instructions.push_back(std::move(code));
  }
  if (c.is_server()) updates_wait_for_sends(p);
  if (!sends_are_ordered) wait_for_all_sends(p);
  return p;
}

void operands_in_buffers(const Compiler& c, Faults& faults) {
  if (!c.program.instructions.empty()) return;
  for (size_t i = 0; i < c.code.size(); ++i) {
    const VirtualInstruction& v = c.code[i];
    const auto look_at = [&](const std::vector<Operand>& operands, const std::vector<BufferId>& buffers) {
      const auto fault = [&](const std::string& text) {
        faults.push_back({c.rank, static_cast<int>(i), v.code.name + ": " + text});
      };
      if (operands.size() != buffers.size()) return fault("as many buffers as operands");
      for (size_t o = 0; o < operands.size(); ++o) {
        if (buffers[o] < 0 || buffers[o] >= static_cast<int>(c.buffers.size()))
          fault(operands[o].tensor + " is in no buffer");
        else if (operands[o].offset < 0 || operands[o].offset + operands[o].bytes() > c.buffers[buffers[o]].bytes)
          fault(operands[o].tensor + " is not inside its buffer of " + std::to_string(c.buffers[buffers[o]].bytes) +
                " bytes");
      }
    };
    look_at(v.code.inputs, v.inputs);
    look_at(v.code.outputs, v.outputs);
  }
}

void sends_are_waited_for(const Program& p, Faults& faults) {
  std::vector<bool> waited(p.instructions.size());
  for (const Instruction& code : p.instructions) {
    for (int w : code.waits) waited[w] = true;
  }
  // A send has been received if a later send on the same channel has been waited for.
  std::set<int> later;
  for (size_t i = p.instructions.size(); i-- > 0;) {
    const Instruction& code = p.instructions[i];
    if (code.opcode != Opcode::send) continue;
    if (waited[i]) later.insert(code.peer);
    if (!later.contains(code.peer)) faults.push_back({p.rank, static_cast<int>(i), code.name + " is never waited for"});
  }
}

std::vector<std::string> communication(const Program& p) {
  std::vector<std::string> list;
  for (const Instruction& code : p.instructions) {
    const bool moves = code.opcode == Opcode::collective || code.opcode == Opcode::send || code.opcode == Opcode::recv;
    if (!moves) continue;
    list.push_back(code.name + " " + std::string(to_string(code.opcode)) + " " +
                   std::string(to_string(code.collective)) + " group " + std::to_string(code.group) + " peer " +
                   std::to_string(code.peer) + " micro-batch " + std::to_string(code.micro_batch) + ", " +
                   std::to_string(code.bytes()) + " bytes");
  }
  return list;
}

/// Passes run on a copy and leave `c` unchanged.
std::unique_ptr<Compiler> copy_of(const Compiler& c) {
  auto copy = std::make_unique<Compiler>(c.graph, c.plan, c.cost, c.rank);
  copy->program = c.program;
  copy->bucket_plans = c.bucket_plans;
  copy->buckets = c.buckets;  // their plans refer to those of `c`
  copy->scalars = c.scalars;
  copy->loss = c.loss;
  copy->states = c.states;
  copy->state_offsets = c.state_offsets;
  copy->buffers = c.buffers;
  copy->code = c.code;
  return copy;
}

class PassProof {
 public:
  PassProof(const Graph& graph, const Plan& plan, const CostModel& cost) {
    for (int rank = 0; rank < plan.processes(); ++rank)
      ranks_.push_back(std::make_unique<Compiler>(graph, plan, cost, rank));
  }

  std::optional<PassFault> run(std::span<const Pass> list) {
    std::vector<std::vector<std::string>> before;
    bool sends_are_ordered = false;
    for (size_t k = 0; k < list.size(); ++k) {
      for (const auto& rank : ranks_) list[k].run(*rank);
      sends_are_ordered = sends_are_ordered || list[k].name == "order_sends";
      if (const std::string wrong = prove(ranks_, sends_are_ordered); !wrong.empty())
        return PassFault{std::string(list[k].name), wrong};
      std::vector<std::vector<std::string>> after;
      for (const auto& rank : ranks_) after.push_back(communication(spread_out(*rank, true)));
      if (!before.empty() && !kMovesCommunication.contains(list[k].name)) {
        for (size_t r = 0; r < after.size(); ++r)
          if (after[r] != before[r]) return PassFault{std::string(list[k].name), moved(r, before[r], after[r])};
      }
      before = std::move(after);
      if (auto fault = finish(list[k], list.subspan(k + 1), sends_are_ordered)) return fault;
    }
    return std::nullopt;
  }

 private:
  static std::string prove(const Compilers& ranks, bool sends_are_ordered) {
    Faults faults;
    for (const auto& rank : ranks) operands_in_buffers(*rank, faults);
    if (!faults.empty()) return text_of(faults);
    std::vector<Program> programs;
    for (const auto& rank : ranks) programs.push_back(spread_out(*rank, sends_are_ordered));
    const bool is_lowered =
        std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return !rank->code.empty(); });
    if (!is_lowered) {
      for (const Program& p : programs) verify_form(p, static_cast<int>(programs.size()), faults);
      return text_of(faults);
    }
    faults = verify_programs(programs);
    for (const Program& p : programs) sends_are_waited_for(p, faults);
    return text_of(faults);
  }

  static std::string moved(size_t rank, const std::vector<std::string>& before, const std::vector<std::string>& after) {
    const auto [b, a] = std::mismatch(before.begin(), before.end(), after.begin(), after.end());
    return "rank " + std::to_string(rank) + ": communication changes: " + (b == before.end() ? "nothing" : *b) +
           " becomes " + (a == after.end() ? "nothing" : *a);
  }

  /// Runs only the remaining required passes, on copies; before lower_stage there is no code to check.
  std::optional<PassFault> finish(const Pass& last, std::span<const Pass> left, bool sends_are_ordered) const {
    if (ranks_.front()->code.empty()) return std::nullopt;
    Compilers copies;
    for (const auto& rank : ranks_) copies.push_back(copy_of(*rank));
    for (const Pass& pass : left) {
      if (pass.need != Pass::Need::required) continue;
      for (const auto& copy : copies) pass.run(*copy);
      sends_are_ordered = sends_are_ordered || pass.name == "order_sends";
      if (const std::string wrong = prove(copies, sends_are_ordered); !wrong.empty())
        return PassFault{std::string(pass.name), "run right after " + std::string(last.name) + ":\n" + wrong};
    }
    return std::nullopt;
  }

  Compilers ranks_;
};

}  // namespace

std::optional<PassFault> first_pass_fault(const Graph& graph, const Plan& plan, const CostModel& cost,
                                          std::span<const Pass> list) {
  return PassProof(graph, plan, cost).run(list);
}

}  // namespace trainctl
