// The gradient of attention sinks (sinks.h): dy and out [b, t, (g, r, e)], logs [b, g, r, t], sinks [heads] -> [heads].
// With attr row_order dy and out are stored in the order of ranks (row_order.h). Logs are too, unless this rank has all
// rows: then they are stored by position.
#include "engine/ops/attention/sinks.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/op_family.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

void expect_sinks_grad(Infos in) {
  using namespace example;
  expect(in.size() == 4, "it expects dy, the output of attention, the logs of its rows, and the sinks");
  expect_shape(in[1], in[0].shape, "the output");
}

}  // namespace

extern const OpDef attention_sinks_grad_op = {
    .name = "attention_sinks_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("attention_sinks_grad", in, 4, 4);
      return {{in[3].shape}};
    },
    .kernel = {.name = "attention_sinks_grad",
               .accumulates = 1,
               .cost = reduction_cost<2>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "gradient of the sinks; inputs dy, out and logs of attention, sinks",
                                          .inputs = {{{4, 1024, 768}}, {{4, 1024, 768}}, f32({4, 12, 1, 1024}), {{12}}},
                                          .optional = {{kRowOrder, int64_t{4}}, {kRowGroups, int64_t{2}}},
                                          .expect = expect_sinks_grad};
                   }},
};

}  // namespace trainctl
