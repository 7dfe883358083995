// y[.., d] = table[ids[..], d]. A rank that holds some rows of the table gives 0 for the others, so the
// rows are a contraction: y is a partial sum where they are cut.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"

namespace trainctl {

extern const OpDef embedding_op = {
    .name = "embedding",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("embedding", in, 2, 2);
      if (in[0].dtype != DType::i32) {
        shape_error(fmt::format("embedding takes i32 ids, it is given {} f32", to_string(in[0])));
      }
      if (in[1].shape.size() != 2) {
        shape_error(fmt::format("embedding needs a table [vocab, units], it is given {}", to_string(in[1])));
      }
      TensorInfo out{in[0].shape, in[1].dtype};
      out.shape.push_back(in[1].shape[1]);
      return {out};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string ids = letters(in[0].shape.size(), "vd");
      return {ids + ",vd->" + ids + "d"};
    },
    // Only the rows that are asked for are read.
    .cost =
        [](Infos in, Infos out, const Attrs&) {
          Cost cost = traffic_cost(in.first(1), out, 0);
          cost.bytes += static_cast<double>(num_elements(out[0].shape) * byte_size(in[1].dtype));
          return cost;
        },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(1, "embedding_grad", {g.out_grad(), g.in(0)}, {{"vocab", g.shape(g.in(1))[0]}});
        },
};

/// (dy, ids) -> dtable; a rank adds up the rows of its own slice.
extern const OpDef embedding_grad_op = {
    .name = "embedding_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("embedding_grad", in, 2, 2);
      expect_ndim("embedding_grad", in[0], 1);
      return {{{attrs.integer("vocab"), in[0].shape.back()}}};
    },
    .cost =
        [](Infos in, Infos out, const Attrs&) {
          Cost cost = traffic_cost(in, out, 0);
          cost.flops = static_cast<double>(num_elements(in[0].shape));
          return cost;
        },
    .can_accumulate = 1,
};

extern const LayerDef embedding_layer = {
    .name = "embedding",
    .doc = "Rows of a table, chosen by integers.",
    .fields = {integer("vocab", "Rows of the table.").required().at_least(1).at_most(kMaxSize),
               units_field().required(), share_field(), init_std_field()},
    .emit =
        [](LayerContext& layer) {
          const Shape shape{layer.attrs.integer("vocab"), layer.attrs.integer("units")};
          const TensorId table = layer.weight(shape, {Init::Kind::normal, 1.0});
          return layer.builder.emit("embedding", {layer.inputs[0], table})[0];
        },
};

}  // namespace trainctl
