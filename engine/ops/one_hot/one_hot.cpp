// y[.., c] = 1 where c = ids[..], else 0, for attr classes; a 16-bit float with the attr bf16 or f16. Each rank writes
// its own classes.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/float_type.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

int64_t classes_of(Infos, const Attrs& attrs) { return attrs.integer("classes"); }

}  // namespace

extern const OpDef one_hot_op = {
    .name = "one_hot",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("one_hot", in, 1, 1);
      if (in[0].dtype != DType::i32)
        shape_error(fmt::format("one_hot expects i32 ids, but got {} f32", to_string(in[0])));
      if (attrs.integer("classes") < 1) shape_error("one_hot: classes must be at least 1");
      TensorInfo out{in[0].shape, float_type_of(attrs)};
      out.shape.push_back(attrs.integer("classes"));
      return {out};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string ids = letters(in[0].shape.size(), "c");
      return {ids + "->" + ids + "c"};
    },
    .kernel = {.name = "one_hot",
               .cost = elementwise_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = 1 at the class, else 0",
                                          .inputs = {ids({kRows})},
                                          .attrs = {{"classes", kCols}},
                                          .optional = {{"bf16", true}},
                                          .below = classes_of};
                   }},
};

extern const LayerDef one_hot_layer = {
    .name = "one_hot",
    .doc = "Converts integers to one-hot vectors in a new last dim.",
    .fields =
        {integer("classes", "Number of classes: the size of the new dim.").required().at_least(1).at_most(kMaxSize)},
    .emit =
        [](LayerContext& layer) {
          Attrs attrs{{"classes", layer.attrs.integer("classes")}};
          set_float_type(layer.builder.parameter_type(), attrs);
          return layer.emit("one_hot", attrs);
        },
};

extern const OpFamily one_hot_family = {.ops = {&one_hot_op}, .layers = {&one_hot_layer}};

}  // namespace trainctl
