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
#include <string>
#include <vector>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

bool reduces(const VirtualInstruction& v) {
  return v.code.opcode == Opcode::collective && v.code.purpose == Purpose::gradient;
}

/// An update and the gather behind it.
struct Pair {
  size_t update = 0;
  int bucket = -1;
};

/// Stages that share a bucket would have to agree on its place.
std::vector<Pair> find_pairs(const Compiler& c) {
  std::map<BufferId, int> bucket_of;  // by the buffer of its gradients
  for (size_t b = 0; b < c.buckets.size(); ++b) {
    const int level = c.program.buckets[b].level;
    if ((level == 1 || level == 2) && c.buckets[b].plan->stages.size() == 1)
      bucket_of.emplace(c.buckets[b].gradients, static_cast<int>(b));
  }
  std::vector<Pair> pairs;
  for (size_t i = 0; i + 1 < c.code.size(); ++i) {
    const Instruction& gather = c.code[i + 1].code;
    if (gather.opcode != Opcode::collective || gather.purpose != Purpose::weights || gather.micro_batch >= 0) continue;
    const auto bucket = bucket_of.find(c.code[i].inputs[0]);
    if (bucket != bucket_of.end()) pairs.push_back({i, bucket->second});
  }
  return pairs;
}

/// Where instructions of a program last were before a given one.
class LastUses {
 public:
  explicit LastUses(const Compiler& c) : uses_(c.buffers.size()) {
    for (size_t i = 0; i < c.code.size(); ++i) {
      for (BufferId buffer : c.code[i].inputs) add(buffer, i);
      for (BufferId buffer : c.code[i].outputs) add(buffer, i);
    }
  }

  /// The last before `at` to touch a buffer that the instruction there touches.
  size_t before(const Compiler& c, size_t at) const {
    size_t last = 0;
    const auto look = [&](BufferId buffer) {
      const std::vector<size_t>& uses = uses_[buffer];
      const auto own = std::lower_bound(uses.begin(), uses.end(), at);
      if (own != uses.begin()) last = std::max(last, *std::prev(own));
    };
    for (BufferId buffer : c.code[at].inputs) look(buffer);
    for (BufferId buffer : c.code[at].outputs) look(buffer);
    return last;
  }

 private:
  void add(BufferId buffer, size_t at) {
    if (uses_[buffer].empty() || uses_[buffer].back() != at) uses_[buffer].push_back(at);
  }

  std::vector<std::vector<size_t>> uses_;  // by buffer, ascending
};

}  // namespace

void update_early(Compiler& c) {
  const std::vector<Pair> pairs = find_pairs(c);
  if (pairs.empty()) return;
  std::vector<size_t> runs;              // of reductions with no work between them: the first of each
  std::map<std::string, size_t> run_of;  // by the name of the gradients: the last
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (!reduces(c.code[i])) continue;
    if (!reduces(c.code[i - 1])) runs.push_back(i);
    run_of[c.code[i].code.inputs[0].tensor] = runs.size() - 1;
  }

  const LastUses uses(c);
  std::multimap<size_t, size_t> moved;  // behind which instruction -> the update
  for (const Pair& pair : pairs) {
    const size_t next = run_of.at("grad." + c.program.buckets[pair.bucket].name) + 1;
    if (next >= runs.size()) continue;
    size_t behind = std::max(runs[next], uses.before(c, pair.update));
    while (reduces(c.code[behind + 1])) ++behind;
    if (behind + 1 < pairs.front().update) moved.emplace(behind, pair.update);
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
