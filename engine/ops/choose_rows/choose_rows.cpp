// Takes each row from one of several tensors: ids i32 [..], x_0, x_1, .. [.., n] -> y = x_id of each row. The ids have
// the leading dims of the others, which may have more dims.
//   masked_rows  ids, x -> x in the rows whose id is attr number, 0 in the others: the gradient of x_number
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

void expect_rows(std::string_view op, Infos in) {
  if (in[0].dtype != DType::i32) shape_error(fmt::format("{}: the ids are {}, expected i32", op, to_string(in[0])));
  const Shape &ids = in[0].shape, &first = in[1].shape;
  if (ids.size() > first.size() || !std::equal(ids.begin(), ids.end(), first.begin()))
    shape_error(fmt::format("{}: the ids are {}, expected the first dims of {}", op, to_string(ids), to_string(first)));
  expect_floats(op, in.subspan(1));
  for (const TensorInfo& x : in.subspan(2)) expect_shape(op, "an input", x, first);
}

RuleText rows_rule(Infos in, const Attrs&) {
  const std::string dims = letters(in[1].shape.size()), rows = dims.substr(0, in[0].shape.size());
  std::string text = rows;
  for (size_t i = 1; i < in.size(); ++i) text += "," + dims;
  return {text + "->" + dims};
}

}  // namespace

extern const OpDef choose_rows_op = {
    .name = "choose_rows",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("choose_rows", in, 2, 65);
      expect_rows("choose_rows", in);
      return {in[1]};
    },
    .rule = rows_rule,
    .backward =
        [](GradBuilder& g) {
          for (int i = 1; i < g.num_inputs(); ++i)
            g.set_in_grad(i, "masked_rows", {g.in(0), g.out_grad()}, {{"number", int64_t{i - 1}}});
        },
    .no_gradient = 1,
    .kernel = {.name = "choose_rows",
               .cost =
                   [](Infos in, Infos out, const Attrs&) {
                     return Cost{.bytes = static_cast<double>(bytes_of(in[0]) + 2 * bytes_of(out[0]))};
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "rows of one of several inputs; inputs ids, x_0, x_1",
                         .inputs = {ids(kColumn), {kMatrix}, {kMatrix}},
                         .below = [](Infos in, const Attrs&) { return static_cast<int64_t>(in.size()) - 1; }};
                   }},
};

/// (ids, dy) -> dx
extern const OpDef masked_rows_op = {
    .name = "masked_rows",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("masked_rows", in, 2, 2);
      expect_rows("masked_rows", in);
      return {in[1]};
    },
    .kernel = {.name = "masked_rows",
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "x where the id is `number`, else 0; inputs ids, x",
                                          .inputs = {ids(kColumn), {kMatrix}},
                                          .attrs = {{"number", int64_t{1}}},
                                          .below = [](Infos, const Attrs&) -> int64_t { return 3; }};
                   }},
};

extern const LayerDef choose_rows_layer = {
    .name = "choose_rows",
    .doc =
        "Selects each row from one of several inputs. Inputs: the number of the input to select for each row (i32, "
        "from 0), then the inputs to select from.",
    .min_inputs = 2,
    .max_inputs = 65,
    .emit = [](LayerContext& layer) { return layer.emit("choose_rows"); },
};

extern const OpFamily choose_rows_family = {.ops = {&choose_rows_op, &masked_rows_op}, .layers = {&choose_rows_layer}};

}  // namespace trainctl
