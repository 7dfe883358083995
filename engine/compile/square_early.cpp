// Clipping needs the sum of the squares of all gradients. Those of a bucket that no collective reduces are summed right
// after the bucket's last gradient is computed, while part of it is still in a cache:
//
//   as lowered   g1 g2 g3 | S1 S2 S3 U1 U2 U3
//   early        g1 S1 g2 S2 g3 S3 | U1 U2 U3          g gradients, S sum of squares, U update
//
// The sums keep their order, in which they add up. What is reduced is summed at the end: earlier, the compute stream
// would wait for the reduction.
#include <algorithm>
#include <vector>

#include "engine/compile/passes.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

bool sums_squares(const VirtualInstruction& v) { return is_kernel(v, sum_squares_kernel); }

/// By instruction: the one behind which it is to stand; itself if it stays.
std::vector<size_t> find_places(const Compiler& c) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> places(c.code.size()), last_user(c.buffers.size(), kNone);
  size_t earliest = 0;
  for (size_t i = 0; i < c.code.size(); ++i) {
    const VirtualInstruction& v = c.code[i];
    places[i] = i;
    if (!sums_squares(v)) {
      for (const std::vector<BufferId>* buffers : {&v.inputs, &v.outputs})
        for (BufferId buffer : *buffers) last_user[static_cast<size_t>(buffer)] = i;
      continue;
    }
    const size_t made = last_user[static_cast<size_t>(v.inputs[0])];
    if (made != kNone && c.code[made].code.opcode == Opcode::kernel) places[i] = std::max(made, earliest);
    earliest = places[i];
  }
  return places;
}

}  // namespace

void square_early(Compiler& c) {
  const std::vector<size_t> places = find_places(c);
  std::vector<std::vector<size_t>> followers(c.code.size());
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i] != i) followers[places[i]].push_back(i);
  std::vector<VirtualInstruction> ordered;
  ordered.reserve(c.code.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (places[i] != i) continue;
    ordered.push_back(std::move(c.code[i]));
    for (size_t follower : followers[i]) ordered.push_back(std::move(c.code[follower]));
  }
  c.code = std::move(ordered);
}

}  // namespace trainctl
