// Orders a layer's gradients by which of them other work waits for.
//
//   as lowered   x3 g3 R3 x2 g2 R2 g1 R1       x gradient of a layer's input, g of its weight, R reduction
//   early        g3 R3 x3 g2 R2 x2 g1 R1
//
// A weight gradient that is reduced goes before the input gradient, which then also hides the reduction. This matters
// at the end of the step, where little work is left to hide the remaining communication.
//
//   as lowered   x3 g3 R3 C3 x2 g2 R2 C2       C moves x to the ranks that continue with it
//   early        x3 C3 g3 R3 x2 C2 g2 R2
//
// If other ranks wait for the input gradient, it goes first and is sent at once.
//
//   early        g3 R3 x3 g2 R2 x2
//   gathered     x3 g3 A2 R3 g2 R2 x2          the weight of layer 3 was gathered for this use
//
// The backward pass begins where most activations are kept. There the input gradient goes first if its weight was
// gathered: then that weight and the weight's gradient are not in memory together. The next layers hide the reduction,
// so the gathers of their weights go before it.
//
//   so far       g2 R2 x2 g1 R1 | U1 A1         U update, A gather of the weights
//   last two     x2 g1 R1 g2 R2 | U1 A1
//
// Weights that the forward pass starts with are gathered at the end of the step. The weight gradient computed
// before theirs, whose own weights are gathered later, moves behind theirs and hides that gather.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

/// True if `v` passes a parameter's gradient on: it sums the gradient over ranks, or pushes it to a server.
bool hands_over(const VirtualInstruction& v) { return reduces(v) || pushes(v); }

bool is_product(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel != nullptr && kernel->is_product;
}

/// Returns the index of the first instruction that reads the output of instruction `at`; the size of the list if none.
size_t first_reader(const Compiler& c, size_t at) {
  const BufferId made = c.code[at].outputs[0];
  for (size_t i = at + 1; i < c.code.size(); ++i) {
    const std::vector<BufferId>& inputs = c.code[i].inputs;
    if (std::find(inputs.begin(), inputs.end(), made) != inputs.end()) return i;
  }
  return c.code.size();
}

/// The instructions that move the output of `at` to other ranks; empty if it stays here or is a gradient that is
/// summed.
std::vector<size_t> way_out(const Compiler& c, size_t at) {
  if (is_persistent(c.buffers[c.code[at].outputs[0]].kind)) return {};  // a gradient of a parameter
  std::vector<size_t> way = {first_reader(c, at)};
  if (way[0] < c.code.size() && is_kernel(c.code[way[0]], pack_kernel)) way.push_back(first_reader(c, way[0]));
  const bool leaves = way.back() < c.code.size() && c.code[way.back()].code.opcode != Opcode::kernel;
  if (!leaves || hands_over(c.code[way.back()])) way.clear();
  return way;
}

/// True if `v` reduces the gradient that `made` computes, and does so within this stage only. A reduction over several
/// stages must not move, because the other stages may wait for what this stage computes next.
bool is_reduced_by(const Compiler& c, const VirtualInstruction& made, const VirtualInstruction& v) {
  if (!hands_over(v) || !touch_the_same(made, v)) return false;
  if (pushes(v)) return true;
  const std::vector<int>& ranks = c.program.groups[static_cast<size_t>(v.code.group)];
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return rank / c.plan.mesh.size() == c.stage; });
}

/// Returns whether the product's weight was gathered for this use, and its memory is free afterwards.
bool reads_gathered(const Compiler& c, const VirtualInstruction& product) {
  return product.inputs.size() > 1 && c.buffers[product.inputs[1]].kind == BufferKind::scratch;
}

/// Moves each of them in turn towards `place`, to after it if dependencies permit.
void move_behind(Compiler& c, const std::vector<size_t>& instructions, size_t place) {
  for (size_t i : instructions) {
    if (!can_move(c, c.code[i], i, place)) return;
    move_instruction(c, i, ++place);
  }
}

/// Returns the position after the reductions of the product's output.
size_t end_of_reductions(const Compiler& c, size_t product) {
  size_t end = product + 1;
  while (end < c.code.size() && is_reduced_by(c, c.code[product], c.code[end])) ++end;
  return end;
}

/// A product that computes a weight gradient, and whose result is reduced right after it.
struct Reduced {
  size_t product = 0, end = 0;         ///< its index, and one past its last reduction
  const RankBucket* bucket = nullptr;  ///< the bucket of the weight
};

/// Returns the last such product before index `behind`.
std::optional<Reduced> last_reduced(const Compiler& c, size_t behind) {
  for (size_t i = behind; i-- > 0;) {
    if (!is_product(c.code[i]) || end_of_reductions(c, i) == i + 1) continue;
    Reduced found{i, end_of_reductions(c, i)};
    for (size_t r = i + 1; r < found.end; ++r) {
      if (c.code[r].inputs[0] != c.code[i].outputs[0]) continue;
      for (size_t b = 0; b < c.buckets.size(); ++b)
        if (c.code[r].code.inputs[0].tensor == "grad." + c.program.buckets[b].piece(0).name)
          found.bucket = &c.buckets[b];
    }
    return found;
  }
  return std::nullopt;
}

/// Exchanges the last two reduced weight gradients as "last two" above shows, if their weights are gathered as it says
/// and no instruction forbids it.
void exchange_last_two(Compiler& c) {
  const std::optional<Reduced> last = last_reduced(c, c.code.size());
  const std::optional<Reduced> before = last ? last_reduced(c, last->product) : std::nullopt;
  if (!before || last->bucket == nullptr || before->bucket == nullptr) return;
  if (last->bucket->gathered_in_forward || !before->bucket->gathered_in_forward) return;
  const auto at = [&](size_t i) { return c.code.begin() + static_cast<std::ptrdiff_t>(i); };
  // Small gradients of both layers may be summed together, directly behind the last product; that is now behind
  // both.
  const auto needs_both = [&](const VirtualInstruction& v) { return conflict(v, c.code[before->product]); };
  const auto end = std::stable_partition(at(last->product + 1), at(last->end), std::not_fn(needs_both));
  const auto place = static_cast<size_t>(end - c.code.begin());
  for (size_t i = before->product; i < before->end; ++i)
    if (!can_move(c, c.code[i], before->end - 1, place)) return;
  std::rotate(at(before->product), at(before->end), end);
}

/// Moves a reduction down behind the gathers that are between it and the next reduction.
void reduce_after_gathers(Compiler& c, size_t reduction) {
  size_t place = reduction;
  for (size_t i = reduction + 1; i < c.code.size() && !reduces(c.code[i]); ++i) {
    const Instruction& code = c.code[i].code;
    if (code.opcode == Opcode::collective && code.collective == Collective::all_gather) place = i;
  }
  if (place > reduction && can_move(c, c.code[reduction], reduction, place + 1)) move_instruction(c, reduction, place);
}

/// Moves each reduction up to where it may start, ahead of products that it does not depend on.
void reduce_at_once(Compiler& c) {
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (!hands_over(c.code[i])) continue;
    size_t place = i;
    while (place > 0 && is_product(c.code[place - 1]) && !conflict(c.code[place - 1], c.code[i])) --place;
    if (place < i) move_instruction(c, i, place);
  }
}

}  // namespace

void order_gradients(Compiler& c) {
  reduce_at_once(c);
  bool is_first = true;
  for (size_t input = 0; input + 1 < c.code.size(); ++input) {
    if (!is_product(c.code[input]) || !is_product(c.code[input + 1])) continue;
    if (const std::vector<size_t> way = way_out(c, input); !way.empty()) {
      // The peer receives what is sent in the order in which it was made.
      if (c.code[way.back()].code.opcode == Opcode::collective) move_behind(c, way, input);
      continue;
    }
    const size_t end = end_of_reductions(c, input + 1);
    if (end == input + 2 || !can_move(c, c.code[input], input, end)) continue;
    if (std::exchange(is_first, false) && reads_gathered(c, c.code[input])) {
      if (end == input + 3) reduce_after_gathers(c, input + 2);
      continue;
    }
    move_instruction(c, input, end - 1);
  }
  exchange_last_two(c);
}

}  // namespace trainctl
