// The bytes of tokens that ranks send to the experts of other ranks and back in a step.
#include "engine/compile/report/token_traffic.h"

#include <cmath>

#include "engine/graph/counted_rows.h"

namespace trainctl {

TokenTraffic token_traffic_of_step(const RankClasses& classes) {
  TokenTraffic all;
  double expected = 0;
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    const auto ranks = static_cast<int64_t>(classes.ranks[c].size());
    const Program& program = classes.programs[c];
    for (const Instruction& i : program.instructions) {
      if (!i.attrs.has(kExpectedShare)) continue;
      // A rank keeps the block for itself.
      const auto members = static_cast<int64_t>(program.groups[static_cast<size_t>(i.group)].size());
      const int64_t sent = i.inputs[0].bytes() / members * (members - 1) * ranks;
      all.most += sent;
      expected += static_cast<double>(sent) * i.attrs.number(kExpectedShare);
    }
  }
  all.expected = std::llround(expected);
  return all;
}

}  // namespace trainctl
