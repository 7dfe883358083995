// y = x summed over the dims in which attr shape is 1 or has no dim: the reverse of broadcasting. With attr f32 y is
// f32 for any x, as the gradient of a parameter must be.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef sum_to_op = {
    .name = "sum_to",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("sum_to", in, 1, 1);
      const Shape shape = attrs.ints("shape");
      if (broadcast_shape("sum_to", in[0].shape, shape) != in[0].shape) {
        shape_error(fmt::format("sum_to: {} cannot be broadcast to {}", to_string(shape), to_string(in[0])));
      }
      return {{shape, attrs.flag("f32") ? DType::f32 : in[0].dtype}};
    },
    .kernel = {.name = "sum_to",
               .accumulates = 1,
               .cost = reduction_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x summed to shape",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"shape", kRow}},
                                          .optional = {{"f32", true}}};
                   }},
};

extern const OpFamily sum_to_family = {.ops = {&sum_to_op}};

}  // namespace trainctl
