// LSTM and GRU over dim 1 of [n, t, features]: y[n, t, h] from the input's part of the gates [n, t, gates h], which a
// product has computed for all steps, and the recurrent weight [gates h, h]; cells.h has the formulas. The first step
// sees an output and a state of 0. attr reverse: the steps go from the last to the first. gru also reads a bias [h].
// Further outputs in f32, which the backward pass reads: of lstm the states [n, t, h]; of both the gates that the cells
// keep [n, t, 4 h].
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"
#include "engine/ops/recurrent/cells.h"

namespace trainctl {
namespace {

constexpr int64_t kMaxLayers = 64;
constexpr const char* kWhyWhole = "each step needs the whole output of the step before";

template <class Cell>
constexpr const char* kRecurrentName = Cell::kHasState ? "lstm" : "gru";

template <class Cell>
std::vector<TensorInfo> infer_recurrent(Infos in, const Attrs&) {
  const std::string_view op = kRecurrentName<Cell>;
  expect_inputs(op, in, Cell::kHasState ? 2 : 3, Cell::kHasState ? 2 : 3);
  expect_floats(op, in);
  if (in[0].shape.size() != 3)
    shape_error(fmt::format("{} expects gates [n, t, {} units], but got {}", op, Cell::kGates, to_string(in[0])));
  const int64_t h = in[0].shape[2] / Cell::kGates;
  expect_shape(op, "the recurrent weight", in[1], {Cell::kGates * h, h});
  if (!Cell::kHasState) expect_shape(op, "the bias", in[2], {h});
  const Shape y = {in[0].shape[0], in[0].shape[1], h}, kept = {y[0], y[1], Cell::kKept * h};
  if (Cell::kHasState) return {{y, in[0].dtype}, {y}, {kept}};
  return {{y, in[0].dtype}, {kept}};
}

template <class Cell>
RuleText recurrent_rule(Infos, const Attrs&) {
  return {.text = Cell::kHasState ? "abg,gh->abh,abh,abg" : "abg,gh,h->abh,abk",
          .uncuttable = Cell::kHasState ? "bgh" : "bghk",
          .why_not = kWhyWhole};
}

/// The cost of `times` products with the recurrent weight.
Cost recurrent_cost(Infos in, Infos out, double rows, double weight, double times) {
  Cost cost = traffic_cost(in, out, 0);
  cost.flops = times * 2.0 * rows * weight;
  return cost;
}

Shape gates_of(int64_t gates) { return {32, 64, gates * 256}; }
const Shape kRecurrentOutput = {32, 64, 256};

template <class Cell>
KernelExample recurrent_example() {
  KernelExample shown{.what = Cell::kHasState ? "y, states, kept gates; inputs gates, recurrent weight"
                                              : "y, kept gates; inputs gates, recurrent weight, bias",
                      .inputs = {{gates_of(Cell::kGates)}, {{Cell::kGates * 256, 256}}},
                      .optional = {{"reverse", true}}};
  if (!Cell::kHasState) shown.inputs.push_back({{256}});
  return shown;
}

template <class Cell>
KernelExample recurrent_grad_example() {
  KernelExample shown{.what = Cell::kHasState ? "dgates, dw; inputs dy, y, states, kept gates, recurrent weight"
                                              : "dgates, dw, db; inputs dy, y, kept gates, recurrent weight",
                      .inputs = {{kRecurrentOutput}, {kRecurrentOutput}},
                      .optional = {{"reverse", true}}};
  if (Cell::kHasState) shown.inputs.push_back(example::f32(kRecurrentOutput));
  shown.inputs.push_back(example::f32(gates_of(Cell::kKept)));
  shown.inputs.push_back({{Cell::kGates * 256, 256}});
  return shown;
}

template <class Cell>
constexpr OpDef recurrent_op() {
  return {.name = kRecurrentName<Cell>,
          .infer = infer_recurrent<Cell>,
          .rule = recurrent_rule<Cell>,
          .backward =
              [](GradBuilder& g) {
                std::vector<TensorId> inputs = {g.out_grad(), g.out(0), g.out(1)};
                if (Cell::kHasState) inputs.push_back(g.out(2));
                inputs.push_back(g.in(1));
                const std::vector<int> which = Cell::kHasState ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
                g.set_in_grads(which, Cell::kHasState ? "lstm_grad" : "gru_grad", inputs, g.attrs());
              },
          .kernel = {.name = kRecurrentName<Cell>,
                     .has_products = true,
                     .cost =
                         [](Infos in, Infos out, const Attrs&) {
                           return recurrent_cost(in, out, static_cast<double>(in[0].shape[0] * in[0].shape[1]),
                                                 static_cast<double>(num_elements(in[1].shape)), 1);
                         },
                     .example = recurrent_example<Cell>}};
}

/// (dy, y, (states,) kept, w) -> dgates, dw(, db)
template <class Cell>
constexpr OpDef recurrent_grad_op() {
  return {.name = Cell::kHasState ? "lstm_grad" : "gru_grad",
          .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
            const std::string_view op = Cell::kHasState ? "lstm_grad" : "gru_grad";
            expect_inputs(op, in, Cell::kHasState ? 5 : 4, Cell::kHasState ? 5 : 4);
            const Shape& y = in[1].shape;
            if (y.size() != 3) shape_error(fmt::format("{} expects y [n, t, units], but got {}", op, to_string(in[1])));
            const Shape weight = {Cell::kGates * y[2], y[2]};
            expect_shape(op, "dy", in[0], y);
            expect_shape(op, "the recurrent weight", in.back(), weight);
            expect_shape(op, "the kept gates", in[in.size() - 2], {y[0], y[1], Cell::kKept * y[2]});
            std::vector<TensorInfo> out = {{{y[0], y[1], Cell::kGates * y[2]}, in[1].dtype}, {weight}};
            if (!Cell::kHasState) out.push_back({{y[2]}});
            return out;
          },
          .kernel = {.name = Cell::kHasState ? "lstm_grad" : "gru_grad",
                     .accumulates = Cell::kHasState ? 2u : 6u,
                     .has_products = true,
                     .cost =
                         [](Infos in, Infos out, const Attrs&) {
                           return recurrent_cost(in, out, static_cast<double>(in[1].shape[0] * in[1].shape[1]),
                                                 static_cast<double>(num_elements(in.back().shape)), 2);
                         },
                     .example = recurrent_grad_example<Cell>}};
}

/// Emits a layer of one direction: the product of the input for all steps, and the recurrent op.
template <class Cell>
TensorId emit_recurrent(LayerContext& layer) {
  LayerBuilder& b = layer.builder;
  const Shape& x = layer.shape();
  if (x.size() != 3)
    shape_error(
        fmt::format("{} needs an input [batch, steps, features], but got {}", kRecurrentName<Cell>, to_string(x)));
  const int64_t units = layer.attrs.integer("units");
  const Init init = linear_init(units);
  const TensorId w = layer.weight({Cell::kGates * units, x.back()}, init);
  TensorId gates = b.emit("matmul", {layer.inputs[0], w}, {{"transpose_b", true}}, "matmul")[0];
  if (layer.attrs.flag("bias"))
    gates = b.emit("add_bias", {gates, layer.bias({Cell::kGates * units}, init)}, {}, "gates")[0];
  std::vector<TensorId> inputs = {gates, b.parameter("recurrent_weight", {Cell::kGates * units, units}, init)};
  if (!Cell::kHasState) inputs.push_back(b.parameter("recurrent_bias", {units}, init));
  Attrs attrs;
  if (layer.attrs.flag("reverse")) attrs.set("reverse", true);
  return b.emit(kRecurrentName<Cell>, inputs, attrs)[0];
}

std::vector<Field> recurrent_fields() {
  return {
      units_field().required(),
      flag("bias", true, "Add a bias."),
      flag("reverse", false, "Process the steps from last to first."),
      flag("bidirectional", false,
           "Process the steps in both directions and concatenate the outputs: [batch, steps, 2 * units]. The reverse "
           "direction is the layer NAME.reverse."),
      integer(
          "layers",
          "Number of stacked layers, each of which reads the output of the previous one: NAME, NAME.layer1 and so on.")
          .defaults(int64_t{1})
          .at_least(1)
          .at_most(kMaxLayers),
      number("dropout", "Probability that an element between two layers is set to 0 during training.")
          .defaults(0.0)
          .at_least(0)
          .below(1),
      init_field(),
      bias_init_field()};
}

std::vector<FieldFault> recurrent_faults(const Attrs& attrs) {
  std::vector<FieldFault> faults;
  if (attrs.flag("bidirectional") && attrs.flag("reverse"))
    faults.push_back({"reverse", "bidirectional already goes from the last step to the first too", "remove reverse"});
  if (attrs.number("dropout", 0) > 0 && attrs.integer("layers", 1) == 1)
    faults.push_back({"dropout", "is applied between layers, and there is one", "e.g. layers: 2"});
  return faults;
}

/// The other direction, and the other layers.
template <class Cell>
std::vector<AddedLayer> other_layers(const Attrs& fields) {
  const bool both = fields.flag("bidirectional");
  const int64_t count = std::clamp<int64_t>(fields.integer("layers", 1), 1, kMaxLayers);
  const double dropout = fields.number("dropout", 0);
  Attrs forward = fields;
  for (const char* own : {"bidirectional", "layers", "dropout"}) forward.erase(own);
  Attrs backward = forward;
  backward.set("reverse", true);
  std::vector<AddedLayer> layers;
  for (int64_t l = 0; l < count; ++l) {
    const std::string name = "layer" + std::to_string(l);
    std::string input = l == 0 ? kLayerInput : layers.empty() ? kLayerOutput : layers.back().suffix;
    if (l > 0 && dropout > 0) {
      layers.push_back({name + ".dropout", "dropout", {input}, {{"p", dropout}}});
      input = layers.back().suffix;
    }
    if (l > 0) layers.push_back({name, kRecurrentName<Cell>, {input}, forward});
    if (!both) continue;
    const std::string first = l == 0 ? kLayerOutput : name, other = l == 0 ? "reverse" : name + ".reverse";
    layers.push_back({other, kRecurrentName<Cell>, {input}, backward});
    layers.push_back({l == 0 ? "both" : name + ".both", "concat", {first, other}, {{"dim", int64_t{-1}}}});
  }
  return layers;
}

}  // namespace

extern const OpDef lstm_op = recurrent_op<LstmCell>(), lstm_grad_op = recurrent_grad_op<LstmCell>();
extern const OpDef gru_op = recurrent_op<GruCell>(), gru_grad_op = recurrent_grad_op<GruCell>();

extern const LayerDef lstm_layer = {
    .name = "lstm",
    .doc =
        "Long short-term memory over dim 1 of [batch, steps, features]: the output of each step, [batch, steps, "
        "units]. The weights are those of torch.nn.LSTM, with one bias in place of its two.",
    .fields = recurrent_fields(),
    .faults = recurrent_faults,
    .added = other_layers<LstmCell>,
    .emit = emit_recurrent<LstmCell>,
};

extern const LayerDef gru_layer = {
    .name = "gru",
    .doc =
        "Gated recurrent unit over dim 1 of [batch, steps, features]: the output of each step, [batch, steps, units]. "
        "The weights are those of torch.nn.GRU, with one bias in place of its two, and the recurrent bias of the new "
        "output.",
    .fields = recurrent_fields(),
    .faults = recurrent_faults,
    .added = other_layers<GruCell>,
    .emit = emit_recurrent<GruCell>,
};

extern const OpFamily recurrent_family = {.ops = {&lstm_op, &lstm_grad_op, &gru_op, &gru_grad_op},
                                          .layers = {&lstm_layer, &gru_layer}};

}  // namespace trainctl
