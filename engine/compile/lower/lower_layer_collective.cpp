// hybrid_parallel: the collectives that are layers. Shapes are one rank's.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/op_def.h"
#include "engine/ops/program_kernels.h"
#include "engine/plan/hybrid/local_shards.h"

namespace trainctl {
namespace {

class CollectiveLowering {
 public:
  CollectiveLowering(Lowering& l, const Node& node, const View& input, const View& output)
      : l_(l), node_(node), input_(input), output_(output), ranks_(group_ranks()) {}

  void lower() {
    switch (*get_op(node_.op).collective) {
      case LayerCollective::all_reduce:
        return collective(Collective::all_reduce, input_, output_);
      case LayerCollective::broadcast:
        return collective(Collective::broadcast, input_, output_);
      case LayerCollective::reduce:
        return reduce();
      case LayerCollective::all_gather:
        return all_gather(dim("dim"));
      case LayerCollective::reduce_scatter:
        return collective(Collective::reduce_scatter, packed(dim("dim")), output_);
      case LayerCollective::all_to_all:
        return all_to_all(dim("split_dim"), dim("concat_dim"));
    }
  }

 private:
  int64_t ways() const { return static_cast<int64_t>(ranks_.size()); }
  int dim(const char* attr) const { return static_cast<int>(node_.attrs.integer(attr, 0)); }
  int root() const { return static_cast<int>(node_.attrs.integer("root", 0)); }

  /// Global ranks of this rank's group.
  std::vector<int> group_ranks() const {
    std::vector<int> ranks;
    for (const Ints& list : layer_groups(node_, l_.c.plan.mesh)) {
      if (std::find(list.begin(), list.end(), l_.c.rank_in_stage) == list.end()) continue;
      for (int64_t r : list) ranks.push_back(l_.c.global_rank(l_.c.stage, static_cast<int>(r)));
    }
    return ranks;
  }

  void reduce() {
    collective(Collective::all_reduce, input_, output_);
    if (ranks_.at(root()) != l_.c.rank) l_.emit_kernel("zero " + node_.name, zero_kernel, {}, {}, {output_});
  }

  void all_gather(int along) { unpacked(along, input_.operand.shape, Collective::all_gather, input_); }

  void all_to_all(int split, int concat) {
    Shape block = input_.operand.shape;
    block[split] /= ways();
    unpacked(concat, block, Collective::all_to_all, packed(split));
  }

  static int64_t outer(const Shape& shape, int dim) { return num_elements(Shape(shape.begin(), shape.begin() + dim)); }
  static int64_t inner(const Shape& shape, int dim) { return num_elements(Shape(shape.begin() + dim, shape.end())); }

  View packed(int along) {
    const Shape& shape = input_.operand.shape;
    if (outer(shape, along) == 1) return input_;
    const View blocks = scratch(input_.operand.bytes(), " packed");
    l_.emit_kernel("pack " + node_.name, pack_kernel,
                   {{"outer", outer(shape, along)}, {"parts", ways()}, {"inner", inner(shape, along) / ways()}},
                   {input_}, {blocks}, Purpose::layer);
    return blocks;
  }

  void unpacked(int along, const Shape& block, Collective kind, const View& from) {
    if (outer(block, along) == 1) return collective(kind, from, output_);
    const View blocks = scratch(output_.operand.bytes(), " gathered");
    collective(kind, from, blocks);
    l_.emit_kernel("unpack " + node_.name, unpack_kernel,
                   {{"outer", outer(block, along)}, {"parts", ways()}, {"inner", inner(block, along)}}, {blocks},
                   {output_}, Purpose::layer);
  }

  View scratch(int64_t bytes, const char* what) {
    View view = l_.c.flat(l_.c.new_buffer(BufferKind::scratch, bytes), 0, bytes / byte_size(output_.operand.dtype),
                          node_.name + what);
    view.operand.dtype = output_.operand.dtype;
    return view;
  }

  void collective(Collective kind, const View& from, const View& to) {
    Instruction i;
    i.opcode = Opcode::collective;
    i.name = node_.name;
    i.collective = kind;
    i.group = l_.c.group_of(ranks_);
    i.root = kind == Collective::broadcast ? root() : 0;
    i.purpose = Purpose::layer;
    l_.emit(std::move(i), {from}, {to});
  }

  Lowering& l_;
  const Node& node_;
  const View& input_;
  const View& output_;
  const std::vector<int> ranks_;
};

}  // namespace

void lower_layer_collective(Lowering& l, const Node& node, const View& input, const View& output) {
  CollectiveLowering(l, node, input, output).lower();
}

}  // namespace trainctl
