// The prediction is often a step's largest tensor: [rows, classes] of a language model, and as much again for its
// gradient. Everything between the product that makes it and the products that read its gradient computes row by row,
// so all of it can run for some rows at a time. Neither tensor then ever exists whole:
//
//   as lowered   y = x w      loss, dy of y      dx = dy w      dw = dy x
//   in pieces    y0 = x0 w    loss, dy0 of y0    dx0 = dy0 w    dw = dy0 x0
//                y1 = x1 w    loss, dy1 of y1    dx1 = dy1 w    dw += dy1 x1     the bytes of y0 and dy0 are free again
//
// The rows of y, dy and dx have the bits of the whole; sums over rows (loss, dw) are added up in another order. Where
// classes are cut, each piece exchanges the statistics of its rows.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// Describes the rows of a tensor: which dim holds them, and how many there are.
struct Rows {
  Shape leading;     ///< sizes of the dims up to and including the dim of rows
  int64_t unit = 1;  ///< number of rows of which each piece starts at a multiple: so it starts at multiples of 64 bytes
  int64_t pieces(int64_t most) const { return std::min(most, units()); }
  /// No piece is larger than the first, so that each fits in the memory of the one before.
  int64_t first_of(int64_t piece, int64_t pieces) const {
    return std::min(count(), (units() * piece + pieces - 1) / pieces * unit);
  }
  int64_t units() const { return (count() + unit - 1) / unit; }
  size_t dim() const { return leading.size() - 1; }
  int64_t count() const { return leading.back(); }

  /// The first dim of more than one: a piece of its rows is contiguous. The last dim holds no rows.
  static std::optional<Rows> of(const Shape& shape) {
    for (size_t d = 0; d + 1 < shape.size(); ++d)
      if (shape[d] > 1) return Rows{Shape(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(d) + 1)};
    return std::nullopt;
  }
  bool lead(const Shape& shape) const {
    return shape.size() >= leading.size() && std::equal(leading.begin(), leading.end(), shape.begin());
  }
};

/// The tensors that exist only in pieces, and the instructions from the product on that read or write them.
struct Head {
  Rows rows;
  std::vector<size_t> members;  ///< ascending, the product first
  std::set<BufferId> inner;     ///< prediction, its gradient, statistics
  std::set<BufferId> gathered;  ///< the tensors of `inner` with shape [ranks, rows, ..], which an all_gather wrote
};

bool has(unsigned mask, size_t i) { return (mask >> i & 1u) != 0; }

/// Row operands of a kernel, or of an all_gather of statistics.
RowOperands row_operands(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel == nullptr ? RowOperands{1, 1} : kernel->row_operands(v.code.attrs);
}

class HeadSearch {
 public:
  HeadSearch(const Compiler& c, size_t product, Rows rows) : c_(c), head_{std::move(rows), {}, {}, {}} {
    head_.members = {product};
    head_.inner = {c.code[product].outputs[0]};
  }

  /// Finds the instructions of the head. Returns nullopt if some instruction needs the whole prediction or its whole
  /// gradient at once.
  std::optional<Head> find() {
    const size_t product = head_.members[0];
    if (!is_row_by_row(c_.code[product]) || c_.code[product].code.outputs[0].accumulate) return std::nullopt;
    for (size_t i = product + 1; i < c_.code.size(); ++i) {
      const VirtualInstruction& v = c_.code[i];
      if (!touches_inner(v)) continue;
      if (!gathers(v) && !is_row_by_row(v)) return std::nullopt;
      head_.members.push_back(i);
    }
    if (head_.members.size() < 2) return std::nullopt;
    for (const size_t i : head_.members) align(c_.code[i]);
    return head_;
  }

 private:
  bool is_inner(BufferId buffer) const { return head_.inner.contains(buffer); }
  bool touches_inner(const VirtualInstruction& v) const {
    const auto inner = [this](BufferId b) { return is_inner(b); };
    return std::any_of(v.inputs.begin(), v.inputs.end(), inner) ||
           std::any_of(v.outputs.begin(), v.outputs.end(), inner);
  }

  /// Returns whether `v` is an all_gather of statistics. If so, adds its output to the inner tensors.
  bool gathers(const VirtualInstruction& v) {
    if (v.code.opcode != Opcode::collective || v.code.purpose != Purpose::statistics) return false;
    head_.inner.insert(v.outputs[0]);
    head_.gathered.insert(v.outputs[0]);
    return true;
  }

  /// Returns true if the instruction can be computed on a part of the rows at a time: its other outputs are sums that
  /// it adds to. Notes the buffers that then exist only for one part.
  bool is_row_by_row(const VirtualInstruction& v) {
    const KernelDef* kernel = kernel_of(v.code);
    if (kernel == nullptr || kernel->row_operands == nullptr) return false;
    const RowOperands of = kernel->row_operands(v.code.attrs);
    if (of.inputs == 0) return false;
    for (size_t i = 0; i < v.inputs.size(); ++i) {
      const bool fits = head_.gathered.contains(v.inputs[i]) || head_.rows.lead(v.code.inputs[i].shape);
      if (has(of.inputs, i) ? !fits : is_inner(v.inputs[i])) return false;
    }
    for (size_t o = 0; o < v.outputs.size(); ++o) {
      const Operand& out = v.code.outputs[o];
      const bool adds = has(kernel->accumulates, o) && out.dtype == DType::f32;
      if (has(of.outputs, o) ? !head_.rows.lead(out.shape) : !adds) return false;
      // The rest of the backward pass reads what a product computes from the gradient, so that exists whole.
      if (has(of.outputs, o) && !kernel->is_product && !is_persistent(c_.buffers[v.outputs[o]].kind))
        head_.inner.insert(v.outputs[o]);
    }
    return true;
  }

  /// Pieces of whole tensors begin where kernels may read them.
  void align(const VirtualInstruction& v) {
    constexpr int64_t kAlignment = 64;
    const RowOperands of = row_operands(v);
    const auto add = [&](BufferId buffer, const Operand& operand) {
      if (is_inner(buffer)) return;
      const int64_t row_bytes = operand.bytes() / head_.rows.count();
      head_.rows.unit = std::lcm(head_.rows.unit, kAlignment / std::gcd(kAlignment, row_bytes));
    };
    for (size_t i = 0; i < v.inputs.size(); ++i)
      if (has(of.inputs, i)) add(v.inputs[i], v.code.inputs[i]);
    for (size_t o = 0; o < v.outputs.size(); ++o)
      if (has(of.outputs, o)) add(v.outputs[o], v.code.outputs[o]);
  }

  const Compiler& c_;
  Head head_;
};

/// Moves the members next to one another, to the place of the first member or of a later one. Returns false if
/// dependencies do not permit this.
bool put_together(Compiler& c, Head& head) {
  size_t first = head.members[0];
  for (size_t n = 1; n < head.members.size(); ++n) {
    const size_t at = head.members[n];
    if (can_move(c, c.code[at], at, first + n - 1)) {
      move_instruction(c, at, first + n);
      continue;
    }
    for (size_t k = 0; k < n; ++k) {
      const size_t from = first + n - 1 - k, to = at - 1 - k;
      if (!can_move(c, c.code[from], from, to + 1)) return false;
      move_instruction(c, from, to);
    }
    first = at - n;
  }
  for (size_t n = 0; n < head.members.size(); ++n) head.members[n] = first + n;
  return true;
}

class Pieces {
 public:
  Pieces(Compiler& c, const Head& head, int64_t count) : c_(c), head_(head), count_(count) {}

  /// Replaces the members by one copy of them per piece.
  void write() {
    const auto first = c_.code.begin() + static_cast<std::ptrdiff_t>(head_.members[0]);
    const auto end = first + static_cast<std::ptrdiff_t>(head_.members.size());
    const std::vector<VirtualInstruction> whole(first, end);
    std::vector<VirtualInstruction> all;
    for (piece_ = 0; piece_ < count_; ++piece_) {
      buffers_.clear();
      for (const VirtualInstruction& v : whole) all.push_back(piece_of(v));
    }
    c_.code.insert(c_.code.erase(first, end), all.begin(), all.end());
    for (BufferId buffer : head_.inner) c_.buffers[buffer].bytes = 0;
  }

 private:
  /// The instruction for the rows of the current piece. After the first piece, outputs without rows are added to.
  VirtualInstruction piece_of(const VirtualInstruction& whole) {
    VirtualInstruction v = whole;
    v.code.name += "." + std::to_string(piece_);
    const RowOperands of = row_operands(v);
    for (size_t i = 0; i < v.inputs.size(); ++i)
      if (has(of.inputs, i)) take_rows(v.inputs[i], v.code.inputs[i]);
    for (size_t o = 0; o < v.outputs.size(); ++o) {
      if (has(of.outputs, o))
        take_rows(v.outputs[o], v.code.outputs[o]);
      else
        v.code.outputs[o].accumulate |= piece_ > 0;
    }
    return v;
  }

  /// Restricts an operand to the rows of the current piece: a part of the whole buffer, or, for an inner one, a buffer
  /// of that size.
  void take_rows(BufferId& buffer, Operand& operand) {
    const size_t d = head_.rows.dim() + (head_.gathered.contains(buffer) ? 1 : 0);
    const int64_t first = head_.rows.first_of(piece_, count_), end = head_.rows.first_of(piece_ + 1, count_);
    const int64_t row_bytes = operand.bytes() / head_.rows.count();
    operand.shape[d] = end - first;
    operand.global_offset[d] += first;
    if (!head_.inner.contains(buffer)) {
      operand.offset += first * row_bytes;
      return;
    }
    const auto [own, added] = buffers_.try_emplace(buffer, -1);
    if (added) own->second = c_.new_buffer(c_.buffers[buffer].kind, operand.bytes());
    buffer = own->second;
    operand.offset = 0;
  }

  Compiler& c_;
  const Head& head_;
  const int64_t count_;
  int64_t piece_ = 0;
  std::map<BufferId, BufferId> buffers_;  ///< buffer of the whole tensor -> buffer of the current piece
};

/// Name of the prediction; empty: nothing is trained or evaluated.
std::string prediction_name(const Graph& graph) {
  if (graph.loss < 0) return "";
  return graph.tensors[graph.nodes[graph.tensors[graph.loss].producer].inputs[0]].name;
}

}  // namespace

void head_in_pieces(Compiler& c) {
  const std::string prediction = prediction_name(c.graph);
  if (c.plan.head_pieces < 2 || prediction.empty()) return;
  for (size_t i = 0; i < c.code.size(); ++i) {
    const VirtualInstruction& v = c.code[i];
    const KernelDef* kernel = kernel_of(v.code);
    const bool makes_it = kernel != nullptr && kernel->is_product && v.outputs.size() == 1 &&
                          v.code.outputs[0].tensor == prediction && !is_persistent(c.buffers[v.outputs[0]].kind);
    const std::optional<Rows> rows = makes_it ? Rows::of(v.code.outputs[0].shape) : std::nullopt;
    if (!rows) continue;
    std::optional<Head> head = HeadSearch(c, i, *rows).find();
    const int64_t pieces = head ? head->rows.pieces(c.plan.head_pieces) : 1;
    if (pieces < 2 || !put_together(c, *head)) continue;
    i = head->members[0] + head->members.size() * static_cast<size_t>(pieces) - 1;
    Pieces(c, *head, pieces).write();
  }
}

}  // namespace trainctl
