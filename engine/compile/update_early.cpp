// Levels 1 and 2: a bucket is updated, and its weights gathered, under the rest of the backward pass.
//
//   as lowered   g1 R1 g2 R2 g3 R3 | U1 A1 U2 A2 U3 A3
//   early        g1 R1 g2 R2 U1 A1 g3 R3 U2 A2 | U3 A3          g gradients, R reduction, U update, A all_gather
//
// The gathers then hide under compute as the reductions do. An update stands behind the next reduction, so that the
// compute stream does not wait for one that has just begun, nor the next reduction for an update. What has no gather
// (levels 0 and 3) stays at the end, where it runs beside the last reduction: before that, it would only delay it.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/compile/conflicts.h"
#include "engine/compile/passes.h"

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

}  // namespace

void update_early(Compiler& c) {
  const std::vector<size_t> updates = find_updates(c);
  if (updates.empty()) return;
  std::vector<size_t> runs;              // of reductions with no work between them: the first of each
  std::map<std::string, size_t> run_of;  // by the name of the gradients: the last
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (!reduces(c.code[i])) continue;
    if (!reduces(c.code[i - 1])) runs.push_back(i);
    run_of[c.code[i].code.inputs[0].tensor] = runs.size() - 1;
  }

  std::multimap<size_t, size_t> moved;  // behind which instruction -> the update
  for (size_t update : updates) {
    const size_t next = run_of.at(c.code[update].code.inputs[0].tensor) + 1;
    if (next >= runs.size()) continue;
    size_t behind = std::max(runs[next], last_use_before(c, update));
    while (reduces(c.code[behind + 1])) ++behind;
    if (behind + 1 < updates.front()) moved.emplace(behind, update);
  }

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
