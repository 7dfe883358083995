// A large gradient whose bucket is reduced in pieces is also computed in pieces, so that each piece but the last is
// reduced while the next is computed.
//
//   as lowered   g R0 R1 R2 R3              g a product, R reductions of its rows
//   in pieces    g0 R0 g1 R1 g2 R2 g3 R3
//
// The rows of a piece are given by its attr `first_row` and its output's shape. A bias gradient that the product also
// computes comes with the first piece.
#include <algorithm>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

int64_t end_of(const Operand& o) { return o.offset + o.bytes(); }

/// The reduction at `first` and those after it that continue where the previous one ends; instructions that add up
/// shards may be between them.
std::vector<size_t> pieces_from(const Compiler& c, size_t first) {
  std::vector<size_t> pieces = {first};
  for (size_t i = first + 1; i < c.code.size(); ++i) {
    const VirtualInstruction& v = c.code[i];
    if (is_kernel(v, accumulate_kernel) || is_kernel(v, copy_slice_kernel)) continue;
    const bool continues = reduces(v) && v.inputs[0] == c.code[first].inputs[0] &&
                           v.code.inputs[0].offset == end_of(c.code[pieces.back()].code.inputs[0]);
    if (!continues) break;
    pieces.push_back(i);
  }
  return pieces;
}

/// The product before the reductions that writes exactly the range they reduce, whole rows for each; end of the
/// list if none.
size_t product_of(const Compiler& c, const std::vector<size_t>& pieces) {
  const auto touched = [&](size_t at) {
    return std::any_of(pieces.begin(), pieces.end(), [&](size_t r) { return touch_the_same(c.code[at], c.code[r]); });
  };
  size_t at = pieces.front();
  while (at > 0 && !touched(at - 1)) --at;
  if (at-- == 0) return c.code.size();
  const VirtualInstruction& product = c.code[at];
  const KernelDef* kernel = kernel_of(product.code);
  if (kernel == nullptr || !kernel->makes_rows || product.outputs[0] != c.code[pieces[0]].inputs[0])
    return c.code.size();
  const Operand& made = product.code.outputs[0];
  const auto range = [&](size_t r) -> const Operand& { return c.code[r].code.inputs[0]; };
  const bool same = made.offset == range(pieces.front()).offset && end_of(made) == end_of(range(pieces.back()));
  const int64_t row_bytes = made.bytes() / std::max<int64_t>(made.shape[0], 1);
  const bool whole_rows =
      std::all_of(pieces.begin(), pieces.end(), [&](size_t r) { return range(r).bytes() % row_bytes == 0; });
  return same && whole_rows ? at : c.code.size();
}

/// The product for the rows of one piece of its output. The bias's gradient, an output of its own, is left to the first
/// piece.
VirtualInstruction rows_of(const VirtualInstruction& product, const Operand& piece, int number) {
  VirtualInstruction v = product;
  v.code.name += "." + std::to_string(number);
  if (number > 0) {
    v.outputs.resize(1);
    v.code.outputs.resize(1);
    Epilogue epilogue = epilogue_of(v.code.attrs);
    epilogue.bias_grad = false;
    set_epilogue(v.code.attrs, epilogue);
  }
  Operand& out = v.code.outputs[0];
  const int64_t row_bytes = out.bytes() / out.shape[0], first_row = (piece.offset - out.offset) / row_bytes;
  v.code.attrs.set("first_row", first_row);
  out.offset = piece.offset;
  out.shape[0] = piece.bytes() / row_bytes;
  out.global_offset[0] += first_row;
  return v;
}

/// Moves the other reductions that follow the gradient to after its last piece, at `last`: otherwise each piece would
/// wait for them.
void reduce_others_later(Compiler& c, size_t from, size_t first_piece, size_t last) {
  for (size_t i = from; i < first_piece;) {
    if (reduces(c.code[i]) && can_move(c, c.code[i], i, last)) {
      move_instruction(c, i, last);
      --first_piece;
    } else {
      ++i;
    }
  }
}

}  // namespace

void make_in_pieces(Compiler& c) {
  for (size_t first = 0; first < c.code.size(); ++first) {
    if (!reduces(c.code[first])) continue;
    const std::vector<size_t> pieces = pieces_from(c, first);
    if (pieces.size() < 2) continue;
    first = pieces.back();
    const size_t at = product_of(c, pieces);
    if (at == c.code.size()) continue;
    std::vector<VirtualInstruction> made;
    bool may_move = true;
    for (size_t p = 0; p < pieces.size(); ++p) {
      made.push_back(rows_of(c.code[at], c.code[pieces[p]].code.inputs[0], static_cast<int>(p)));
      may_move = may_move && (p == 0 || can_move(c, made[p], at, pieces[p]));
    }
    if (!may_move) continue;
    c.code[at] = std::move(made[0]);
    for (size_t p = 1; p < made.size(); ++p, ++first)
      c.code.insert(c.code.begin() + static_cast<std::ptrdiff_t>(pieces[p] + p - 1), std::move(made[p]));
    reduce_others_later(c, at + 1, pieces.front(), first);
  }
}

}  // namespace trainctl
