// A large gradient whose bucket is reduced in pieces is made in pieces too, so that all but the last are reduced while
// the next is made.
//
//   as lowered   g R0 R1 R2 R3              g a product, R reductions of its rows
//   in pieces    g0 R0 g1 R1 g2 R2 g3 R3
//
// Which rows a piece has is its attr `first_row` and its output's shape. The gradient of a bias that the product makes
// along comes with the first.
#include <algorithm>

#include "engine/compile/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

bool reduces(const VirtualInstruction& v) {
  return v.code.opcode == Opcode::collective && v.code.purpose == Purpose::gradient;
}

int64_t end_of(const Operand& o) { return o.offset + o.bytes(); }

/// One past the last of the reductions from `first` on that follow from one another, in the list and in their buffer.
size_t end_of_pieces(const Compiler& c, size_t first) {
  size_t end = first + 1;
  while (end < c.code.size() && reduces(c.code[end]) && c.code[end].inputs[0] == c.code[first].inputs[0] &&
         c.code[end].code.inputs[0].offset == end_of(c.code[end - 1].code.inputs[0]))
    ++end;
  return end;
}

/// The product before the reductions that makes just what they reduce, in whole rows of each; where none can be cut:
/// the list's end.
size_t product_of_pieces(const Compiler& c, size_t first, size_t end) {
  const Operand &front = c.code[first].code.inputs[0], &back = c.code[end - 1].code.inputs[0];
  size_t at = first;
  while (at > 0 && !std::any_of(c.code.begin() + static_cast<std::ptrdiff_t>(first),
                                c.code.begin() + static_cast<std::ptrdiff_t>(end),
                                [&](const VirtualInstruction& r) { return touch_the_same(c.code[at - 1], r); }))
    --at;
  if (at-- == 0) return c.code.size();
  const VirtualInstruction& product = c.code[at];
  if (product.code.op != "matmul_weight_grad" || product.outputs[0] != c.code[first].inputs[0]) return c.code.size();
  const Operand& made = product.code.outputs[0];
  const int64_t row_bytes = made.bytes() / std::max<int64_t>(made.shape[0], 1);
  const bool whole_rows = std::all_of(c.code.begin() + static_cast<std::ptrdiff_t>(first),
                                      c.code.begin() + static_cast<std::ptrdiff_t>(end),
                                      [&](const auto& r) { return r.code.inputs[0].bytes() % row_bytes == 0; });
  return whole_rows && made.offset == front.offset && end_of(made) == end_of(back) ? at : c.code.size();
}

VirtualInstruction rows_of(const VirtualInstruction& product, const Operand& piece, int number) {
  VirtualInstruction v = product;
  v.code.name += "." + std::to_string(number);
  if (number > 0) {
    v.outputs.resize(1);
    v.code.outputs.resize(1);
    v.code.attrs.erase("bias_grad");
  }
  Operand& out = v.code.outputs[0];
  const int64_t row_bytes = out.bytes() / out.shape[0], first_row = (piece.offset - out.offset) / row_bytes;
  v.code.attrs.set("first_row", first_row);
  out.offset = piece.offset;
  out.shape[0] = piece.bytes() / row_bytes;
  out.global_offset[0] += first_row;
  return v;
}

}  // namespace

void make_in_pieces(Compiler& c) {
  for (size_t first = 0, end; first < c.code.size(); first = end) {
    end = first + 1;
    if (!reduces(c.code[first])) continue;
    end = end_of_pieces(c, first);
    if (end - first < 2) continue;
    const size_t at = product_of_pieces(c, first, end);
    if (at == c.code.size()) continue;
    std::vector<VirtualInstruction> pieces;
    for (size_t r = first; r < end; ++r)
      pieces.push_back(rows_of(c.code[at], c.code[r].code.inputs[0], static_cast<int>(r - first)));
    if (!can_move(c, pieces[1], at, first)) continue;
    c.code[at] = std::move(pieces[0]);
    for (size_t p = 1; p < pieces.size(); ++p, ++end)
      c.code.insert(c.code.begin() + static_cast<std::ptrdiff_t>(first + 2 * p - 1), std::move(pieces[p]));
  }
}

}  // namespace trainctl
