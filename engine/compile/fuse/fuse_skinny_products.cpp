// Products with few columns of one large operand, which is nearly all that they read, become one kernel
// (matmul/skinny_products.h), as do the gradients of their weights: the first layers of the adapters of a block's gate
// and up. The kernel of the products includes the scale of their results.
#include <algorithm>
#include <span>

#include "engine/compile/fuse/join_instructions.h"
#include "engine/compile/fuse/skinny_products.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/matmul/skinny_products.h"
#include "engine/ops/named_ops.h"

namespace trainctl {
namespace {

/// The instructions between the members of a group.
constexpr size_t kFarthest = 24;

/// p = x a^T, with few columns.
bool is_skinny_product(const VirtualInstruction& v) {
  return is_plain_product(v, matmul_op.kernel) && v.code.attrs.flag("transpose_b") &&
         !v.code.attrs.flag("transpose_a") && v.code.inputs[1].shape.size() == 2 && !v.code.outputs[0].accumulate &&
         v.code.outputs[0].dtype == v.code.inputs[0].dtype && v.code.outputs[0].shape.back() <= kMostFeatures &&
         is_large(v.code.inputs[0]);
}

/// da = dp^T x, with few rows.
bool is_skinny_weight_grad(const VirtualInstruction& v) {
  return is_plain_product(v, matmul_weight_grad_op.kernel) && !v.code.attrs.flag("kn") &&
         !v.code.attrs.has("first_row") && v.code.inputs[0].dtype == v.code.inputs[1].dtype &&
         v.code.inputs[1].shape.back() <= kMostFeatures && is_large(v.code.inputs[0]) &&
         v.code.inputs[0].shape.back() > kMostFeatures;
}

/// True if one kernel can compute both from the large operand that they share.
bool can_share_kernel(const VirtualInstruction& a, const VirtualInstruction& b) {
  const Operand &of_a = a.code.inputs[0], &of_b = b.code.inputs[0];
  return a.inputs[0] == b.inputs[0] && of_a.offset == of_b.offset && of_a.shape == of_b.shape &&
         a.code.outputs[0].shape == b.code.outputs[0].shape && a.code.outputs[0].dtype == b.code.outputs[0].dtype &&
         a.code.outputs[0].accumulate == b.code.outputs[0].accumulate && in_one_task(a.code, b.code);
}

int64_t features_of(const VirtualInstruction& v, bool gradients) {
  const Shape& shape = v.code.outputs[0].shape;
  return gradients ? shape[0] : shape.back();
}

/// Members that one kernel computes. It takes the place of the first product, for whose result other instructions wait,
/// but of the last gradient of a weight, because that one's operand may be computed just before.
class Group {
 public:
  Group(Compiler& c, size_t first, bool gradients)
      : c_(c), gradients_(gradients), features_(features_of(c.code[first], gradients)), members_{first} {}

  /// Adds the later products that can share the first one's kernel, and can move to it (gradients: to which the others
  /// can move).
  void add_all(bool (*is_one)(const VirtualInstruction&)) {
    const size_t first = members_[0], end = std::min(c_.code.size(), first + kFarthest);
    for (size_t i = first + 1; i < end && members_.size() < kMostSkinny; ++i) {
      const VirtualInstruction& v = c_.code[i];
      if (!is_one(v) || !can_share_kernel(c_.code[first], v) || features_ + features_of(v, gradients_) > kMostFeatures)
        continue;
      const bool fits = gradients_
                            ? std::ranges::all_of(members_, [&](size_t m) { return can_move(c_, c_.code[m], m, i); })
                            : can_move(c_, v, i, first);
      if (!fits) continue;
      members_.push_back(i);
      features_ += features_of(v, gradients_);
    }
  }

  void join() {
    VirtualInstruction one = c_.code[members_[0]];
    const size_t place = gradients_ ? members_.back() : members_[0];
    const size_t small = 1;  // the operand with few columns
    for (const size_t m : std::span(members_).subspan(1)) {
      const VirtualInstruction& v = c_.code[m];
      one.inputs.push_back(v.inputs[small]);
      one.code.inputs.push_back(v.code.inputs[small]);
      one.outputs.push_back(v.outputs[0]);
      one.code.outputs.push_back(v.code.outputs[0]);
    }
    one.code.op = gradients_ ? skinny_weight_grads_kernel.name : skinny_products_kernel.name;
    one.code.attrs = {};
    for (const size_t m : members_) mark_removed(c_, m);
    c_.code[place] = std::move(one);
    if (!gradients_) take_scales(c_, place, members_.size());
  }

 private:
  Compiler& c_;
  bool gradients_;
  int64_t features_;
  std::vector<size_t> members_;
};

}  // namespace

void fuse_skinny_products(Compiler& c) {
  for (const bool gradients : {false, true}) {
    bool (*const is_one)(const VirtualInstruction&) = gradients ? is_skinny_weight_grad : is_skinny_product;
    for (size_t i = 0; i < c.code.size(); ++i) {
      if (!is_one(c.code[i])) continue;
      Group group(c, i, gradients);
      group.add_all(is_one);
      group.join();
    }
  }
  remove_marked(c);
}

}  // namespace trainctl
