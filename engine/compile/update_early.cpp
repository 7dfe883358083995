// Levels 1 and 2: a bucket is updated, and its weights gathered, under the rest of the backward pass.
//
//   as lowered   g1 R1 g2 R2 g3 R3 | U1 A1 U2 A2 U3 A3
//   early        g1 R1 U1 A1 g2 R2 U2 A2 g3 R3 | U3 A3          g gradients, R reduction, U update, A all_gather
//
// The gathers then hide under compute as the reductions do. An update stands where its reduction should be over by the
// cost model: not before, or the compute stream waits for it; nor later, or the gathers of the whole backward pass pile
// up at its end, where nothing hides them. What has no gather (levels 0 and 3) stays at the end, where it runs beside
// the last reduction: before that, it would only delay it.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/compile/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/elementwise.h"
#include "engine/plan/cost_model.h"

namespace trainctl {
namespace {

/// Those with a gather behind them. Stages that share a bucket would have to agree on its place.
std::vector<size_t> find_updates(const Compiler& c) {
  std::set<BufferId> gradients;
  for (size_t b = 0; b < c.buckets.size(); ++b) {
    const int level = c.program.buckets[b].level;
    if ((level == 1 || level == 2) && c.buckets[b].plan->stages.size() == 1) gradients.insert(c.buckets[b].gradients);
  }
  std::vector<size_t> updates;
  for (size_t i = 0; i + 1 < c.code.size(); ++i) {
    const Instruction& gather = c.code[i + 1].code;
    if (gather.opcode != Opcode::collective || gather.purpose != Purpose::weights || gather.micro_batch >= 0) continue;
    if (gradients.contains(c.code[i].inputs[0])) updates.push_back(i);
  }
  return updates;
}

/// The last instruction before `at` that touches what the one there touches.
size_t last_use_before(const Compiler& c, size_t at) {
  for (size_t i = at; i-- > 0;)
    if (touch_the_same(c.code[i], c.code[at])) return i;
  return 0;
}

Cost cost_of(const Instruction& code) {
  const auto infos = [](const std::vector<Operand>& operands) {
    std::vector<TensorInfo> list;
    for (const Operand& o : operands) list.push_back({o.shape, o.dtype});
    return list;
  };
  const std::vector<TensorInfo> inputs = infos(code.inputs), outputs = infos(code.outputs);
  const OpDef* op = find_op(code.op);
  return op != nullptr && op->is_product ? op->cost(inputs, outputs, code.attrs) : traffic_cost(inputs, outputs, 0);
}

/// When the streams are through with what was issued so far, in seconds.
class Clocks {
 public:
  explicit Clocks(const Compiler& c) : c_(c) {}

  void issue(const Instruction& code) {
    if (code.opcode == Opcode::kernel) compute_ += c_.cost.compute_seconds(cost_of(code));
    if (code.opcode != Opcode::collective) return;
    const auto ranks = static_cast<int>(c_.program.groups[static_cast<size_t>(code.group)].size());
    wire_ = std::max(wire_, compute_) + c_.cost.collective_seconds(code.collective, code.bytes(), ranks);
  }
  double compute() const { return compute_; }
  double wire() const { return wire_; }

 private:
  const Compiler& c_;
  double compute_ = 0, wire_ = 0;
};

/// Behind which instruction each update goes, with its gather. Updates that are not among them stay.
std::multimap<size_t, size_t> find_places(const Compiler& c, const std::vector<size_t>& updates) {
  std::multimap<size_t, size_t> places;
  std::map<std::string, double> reduced;  // when, by the name of the gradients: the last that was issued
  Clocks clocks(c);
  auto next = updates.begin();
  size_t last_use = last_use_before(c, *next);
  const auto may_stand_before = [&](size_t i) {
    const auto found = reduced.find(c.code[*next].code.inputs[0].tensor);
    return last_use < i && found != reduced.end() && found->second <= clocks.compute();
  };
  for (size_t i = 0; i < updates.front(); ++i) {
    const Instruction& code = c.code[i].code;
    while (!reduces(c.code[i]) && next != updates.end() && may_stand_before(i)) {
      places.emplace(i - 1, *next);
      clocks.issue(c.code[*next].code);
      clocks.issue(c.code[*next + 1].code);
      if (++next != updates.end()) last_use = last_use_before(c, *next);
    }
    clocks.issue(code);
    if (reduces(c.code[i])) reduced[code.inputs[0].tensor] = clocks.wire();
  }
  return places;
}

}  // namespace

void update_early(Compiler& c) {
  const std::vector<size_t> updates = find_updates(c);
  if (updates.empty()) return;
  const std::multimap<size_t, size_t> moved = find_places(c, updates);
  std::vector<bool> gone(c.code.size());
  for (const auto& [behind, update] : moved) gone[update] = gone[update + 1] = true;
  std::vector<VirtualInstruction> ordered;
  ordered.reserve(c.code.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (gone[i]) continue;
    ordered.push_back(std::move(c.code[i]));
    for (auto [it, end] = moved.equal_range(i); it != end; ++it) {
      ordered.push_back(std::move(c.code[it->second]));
      ordered.push_back(std::move(c.code[it->second + 1]));
    }
  }
  c.code = std::move(ordered);
}

}  // namespace trainctl
