// Levels 1 and 2: a bucket's update and the gather of its weights overlap with the rest of the backward pass.
//
//   as lowered   g1 R1 g2 R2 g3 R3 | U1 A1 U2 A2 U3 A3
//   early        g1 R1 U1 A1 g2 R2 U2 A2 g3 R3 | U3 A3          g gradients, R reduction, U update, A all_gather
//
// The gathers are then hidden by compute, as the reductions are. An update is placed where the cost model expects
// its reduction to be over. Earlier, the compute stream would wait for it; later, the gathers of the whole backward
// pass would pile up at its end, where nothing hides them. Updates that no gather follows (levels 0 and 3, and weights
// gathered in the forward pass) stay at the end and fill the time until the last reductions are over.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/compile/order/accesses.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/compile/rank_groups.h"
#include "engine/ops/elementwise.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {
namespace {

/// Returns the updates that a gather follows. Excludes buckets that several stages share, because these stages would
/// have to agree on the new place.
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
    if (!c.code[i].inputs.empty() && gradients.contains(c.code[i].inputs[0])) updates.push_back(i);
  }
  return updates;
}

/// For each buffer, the instructions that read or write it, in order.
using UsersOfBuffers = std::vector<std::vector<size_t>>;

UsersOfBuffers find_users_of_buffers(const Compiler& c) {
  UsersOfBuffers users(c.buffers.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    for (BufferId buffer : c.code[i].inputs) users[static_cast<size_t>(buffer)].push_back(i);
    for (BufferId buffer : c.code[i].outputs) users[static_cast<size_t>(buffer)].push_back(i);
  }
  return users;
}

/// Returns the last instruction before the update at `at` that touches a buffer of the update or of its gather.
size_t last_use_before(const Compiler& c, const UsersOfBuffers& users, size_t at) {
  size_t last = 0;
  const auto look = [&](const VirtualInstruction& v, BufferId buffer) {
    const std::vector<size_t>& all = users[static_cast<size_t>(buffer)];
    for (auto i = std::lower_bound(all.begin(), all.end(), at); i != all.begin();) {
      if (*--i <= last) return;
      if (touch_the_same(c.code[*i], v)) last = *i;
    }
  };
  for (const VirtualInstruction* v : {&c.code[at], &c.code[at + 1]}) {
    for (BufferId buffer : v->inputs) look(*v, buffer);
    for (BufferId buffer : v->outputs) look(*v, buffer);
  }
  return last;
}

/// Returns the cost of a matrix product or an update, and 0 for other instructions. All ranks of a stage must choose
/// the same order, so only instructions that all of them have count. A loss, for example, may exist on one rank only.
Cost cost_of(const Instruction& code) {
  const std::vector<TensorInfo> inputs = infos_of(code.inputs), outputs = infos_of(code.outputs);
  const KernelDef& kernel = *kernel_of(code);
  if (kernel.updates_outputs) return traffic_cost(inputs, outputs, 0);
  return kernel.is_product ? kernel.cost(inputs, outputs, code.attrs) : Cost{};
}

/// The time, in seconds, at which each stream finishes what was issued so far.
class Clocks {
 public:
  explicit Clocks(const Compiler& c) : c_(c), spreads_(c.program.groups.size()) {}

  void issue(const Instruction& code) {
    if (code.opcode == Opcode::kernel) compute_ += c_.cost.compute_seconds(cost_of(code));
    if (code.opcode != Opcode::collective) return;
    const Bytes bytes{static_cast<double>(code.bytes())};
    wire_ = std::max(wire_, compute_) +
            collective_time(c_.cost.machine(), code.collective, bytes, spread(static_cast<size_t>(code.group))).value;
  }
  double compute() const { return compute_; }
  double wire() const { return wire_; }

 private:
  /// Returns how a group is spread over hosts. All ranks of a stage must compute the same order, so the group of the
  /// stage's first rank represents the groups of the other ranks.
  const GroupSpread& spread(size_t group) {
    std::optional<GroupSpread>& known = spreads_[group];
    if (!known) {
      const GroupKind kind = group_of_ranks(c_.plan.mesh, c_.program.groups[group], c_.program.rank);
      known = spread_of(c_.cost.machine(), kind.members(c_.plan.mesh, c_.program.rank - c_.program.rank_in_stage));
    }
    return *known;
  }

  const Compiler& c_;
  std::vector<std::optional<GroupSpread>> spreads_;  ///< by group, once they are needed
  double compute_ = 0, wire_ = 0;
};

/// The instructions in their new order.
class EarlyPlacement {
 public:
  EarlyPlacement(const Compiler& c, const std::vector<size_t>& updates)
      : c_(c),
        users_(find_users_of_buffers(c)),
        updates_(updates),
        is_gathered_(c.code.size()),
        taken_(c.code.size()),
        clocks_(c) {
    for (size_t update : updates) is_gathered_[update] = true;
  }

  std::vector<size_t> order() {
    while (end_ < c_.code.size() && !is_update(c_.code[end_].code)) ++end_;
    place_under_the_backward_pass();
    find_fillers();
    place_at_the_end();
    return std::move(order_);
  }

 private:
  void place_under_the_backward_pass() {
    auto next = updates_.begin();
    size_t last_use = last_use_before(c_, users_, *next);
    for (size_t i = 0; i < end_; ++i) {
      while (!reduces(c_.code[i]) && next != updates_.end() && last_use < i && is_reduced(*next)) {
        place(*next);
        place(*next + 1);
        if (++next != updates_.end()) last_use = last_use_before(c_, users_, *next);
      }
      place(i);
    }
  }

  /// Finds the fillers: updates that no gather follows, and that can be placed anywhere among the last instructions.
  void find_fillers() {
    std::vector<bool> written(c_.buffers.size());  // by the last instructions
    for (size_t i = end_; i < c_.code.size(); ++i) note_writes(c_.code[i], written);
    for (size_t i = end_; i < c_.code.size(); ++i) {
      if (is_gathered_[i] || !is_update(c_.code[i].code) || conflicts_at_the_end(i, written)) continue;
      fillers_.push_back(i);
      taken_[i] = true;
    }
  }

  static void note_writes(const VirtualInstruction& v, std::vector<bool>& written) {
    const std::vector<MemoryAccess> all = accesses(v.code);
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].writes)
        written[static_cast<size_t>(i < v.inputs.size() ? v.inputs[i] : v.outputs[i - v.inputs.size()])] = true;
  }

  /// True if the update at `at` cannot be moved freely, because other last instructions write buffers that it uses
  /// (`written`) or use buffers that it writes.
  bool conflicts_at_the_end(size_t at, const std::vector<bool>& written) const {
    const VirtualInstruction& v = c_.code[at];
    const auto conflicts = [&](BufferId buffer) {
      const std::vector<size_t>& users = users_[static_cast<size_t>(buffer)];
      return written[static_cast<size_t>(buffer)] &&
             std::any_of(std::lower_bound(users.begin(), users.end(), end_), users.end(),
                         [&](size_t i) { return i != at && conflict(v, c_.code[i]); });
    };
    return std::any_of(v.inputs.begin(), v.inputs.end(), conflicts) ||
           std::any_of(v.outputs.begin(), v.outputs.end(), conflicts);
  }

  /// Places the last instructions. Each update with a gather waits for its sum over ranks; the fillers run meanwhile.
  void place_at_the_end() {
    auto filler = fillers_.begin();
    for (size_t i = end_; i < c_.code.size(); ++i) {
      if (taken_[i]) continue;
      while (is_gathered_[i] && filler != fillers_.end() && !is_reduced(i) && is_reduced(*filler)) place(*filler++);
      place(i);
    }
    while (filler != fillers_.end()) place(*filler++);
  }

  bool is_reduced(size_t update) const {
    const auto found = reduced_.find(c_.code[update].code.inputs[0].tensor);
    return found != reduced_.end() && found->second <= clocks_.compute();
  }

  void place(size_t at) {
    order_.push_back(at);
    taken_[at] = true;
    clocks_.issue(c_.code[at].code);
    if (reduces(c_.code[at])) reduced_[c_.code[at].code.inputs[0].tensor] = clocks_.wire();
  }

  const Compiler& c_;
  const UsersOfBuffers users_;
  const std::vector<size_t>& updates_;  ///< updates that a gather follows
  size_t end_ = 0;                      ///< index of the first update as lowered
  std::vector<size_t> order_, fillers_;
  std::vector<bool> is_gathered_;          ///< by instruction: an update that a gather follows
  std::vector<bool> taken_;                ///< placed, or a filler
  std::map<std::string, double> reduced_;  ///< by the name of the gradients: when their last reduction ends, in seconds
  Clocks clocks_;
};

}  // namespace

void update_early(Compiler& c) {
  const std::vector<size_t> updates = find_updates(c);
  if (updates.empty()) return;
  std::vector<VirtualInstruction> ordered;
  ordered.reserve(c.code.size());
  for (size_t i : EarlyPlacement(c, updates).order()) ordered.push_back(std::move(c.code[i]));
  c.code = std::move(ordered);
}

}  // namespace trainctl
