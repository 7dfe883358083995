// One step of a redistribution as instructions. A collective moves one contiguous block per group member. If the
// blocks of the cut dim are not contiguous, pack and unpack go before and after:
//
//   all_gather dim 1:  [a, b/p] -> collective -> p blocks [a, b/p] -> unpack -> [a, b]
#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

/// A shape as [outer, dim, inner] around one dim.
struct Around {
  int64_t outer = 1, inner = 1;
  Around(const Shape& shape, int dim) {
    for (int d = 0; d < dim; ++d) outer *= shape[d];
    for (int d = dim + 1; d < static_cast<int>(shape.size()); ++d) inner *= shape[d];
  }
};

class StepLowering {
 public:
  StepLowering(Lowering& l, TensorId tensor, const RedistributionStep& step, Format format)
      : l_(l), tensor_(tensor), step_(step), name_(l.c.graph.tensors[tensor].name) {
    ways_ = l.c.plan.mesh.ways(step.axes);
    step_.dim = stored_dim(step.dim, format);
    step_.to_dim = stored_dim(step.to_dim, format);
    out_ = l.new_tensor(tensor, l.id(step.after), format);
  }

  /// Emits the instructions of the step on `from`, and returns the result.
  View lower(const View& from) {
    switch (step_.kind) {
      case StepKind::slice:
        slice(from);
        break;
      case StepKind::all_gather:
        unpacked(step_.dim, from.operand.shape, [&](const View& to) { collective(Collective::all_gather, from, to); });
        break;
      case StepKind::reduce_scatter:
        collective(Collective::reduce_scatter, packed(step_.dim, from), out_);
        break;
      case StepKind::all_reduce:
        collective(Collective::all_reduce, from, out_);
        break;
      case StepKind::all_to_all:
        all_to_all(from);
        break;
    }
    return out_;
  }

 private:
  void slice(const View& from) {
    const Around around(out_.operand.shape, step_.dim);
    const int64_t index = l_.c.plan.mesh.index(l_.c.rank_in_stage, step_.axes);
    const int64_t inner = out_.operand.shape[step_.dim] * around.inner;
    move("slice ", copy_slice_kernel, {{"outer", around.outer}, {"parts", ways_}, {"index", index}, {"inner", inner}},
         from, out_);
  }

  // Member j's block of `to_dim` goes to member j; blocks that arrive follow each other along `dim`.
  void all_to_all(const View& from) {
    Shape block = from.operand.shape;
    block[step_.to_dim] /= ways_;
    const View sent = packed(step_.to_dim, from);
    unpacked(step_.dim, block, [&](const View& to) { collective(Collective::all_to_all, sent, to); });
  }

  // The input with its `ways_` blocks of `dim` stored one after the other.
  View packed(int dim, const View& from) {
    const Around around(from.operand.shape, dim);
    if (around.outer == 1) return from;
    const View blocks = scratch(from.operand.bytes(), " packed");
    const int64_t inner = from.operand.shape[dim] / ways_ * around.inner;
    move("pack ", pack_kernel, {{"outer", around.outer}, {"parts", ways_}, {"inner", inner}}, from, blocks);
    return blocks;
  }

  // Calls `fill` with a buffer for `ways_` blocks of shape `block`, then puts the blocks side by side along `dim`
  // of out_.
  template <class Fill>
  void unpacked(int dim, const Shape& block, Fill fill) {
    const Around around(block, dim);
    if (around.outer == 1) return fill(out_);
    const View blocks = scratch(out_.operand.bytes(), " gathered");
    fill(blocks);
    move("unpack ", unpack_kernel, {{"outer", around.outer}, {"parts", ways_}, {"inner", block[dim] * around.inner}},
         blocks, out_);
  }

  View scratch(int64_t bytes, const char* what) {
    View view =
        l_.c.flat(l_.c.new_buffer(BufferKind::scratch, bytes), 0, bytes / byte_size(out_.operand.dtype), name_ + what);
    view.operand.dtype = out_.operand.dtype;
    return view;
  }

  void move(const char* verb, const KernelDef& kernel, Attrs attrs, const View& from, const View& to) {
    l_.emit_kernel(verb + name_, kernel, std::move(attrs), {from}, {to}, Purpose::redistribute);
  }

  void collective(Collective kind, const View& from, const View& to) {
    std::vector<int> ranks = l_.c.plan.mesh.group(l_.c.rank_in_stage, step_.axes);
    for (int& rank : ranks) rank = l_.c.global_rank(l_.c.stage, rank);
    l_.emit_collective(std::string(to_string(kind)) + " " + name_, kind, l_.c.group_of(ranks), from, to,
                       Purpose::redistribute);
  }

  Lowering& l_;
  const TensorId tensor_;
  RedistributionStep step_;  ///< its dims as they are stored
  const std::string& name_;
  int64_t ways_ = 1;
  View out_;
};

}  // namespace

View redistribute(Lowering& l, TensorId tensor, const View& from, const RedistributionStep& step) {
  return StepLowering(l, tensor, step, from.operand.format).lower(from);
}

}  // namespace trainctl
