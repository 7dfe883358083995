// Losses that compare embeddings, the outputs of layers [n, .., d]. They are computed by layers before the loss:
//   cosine_embedding  the cosine of both, which the op of that name (pair_loss) compares with the label
//   triplet           max(0, |a - p| - |a - n| + margin) of each row
//   info_nce          the cross-entropy of finding the key of a query among all keys of the batch, and with symmetric
//                     the query of a key. A plan that cuts the rows gathers the others' keys.
// The last two have no label: mean_value (pair_loss) sums their rows.
//
// row_index: y[i] = i, i32 [n], for an input [n]: the class of row i is the number of its key.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_builder.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef cosine_embedding_op, mean_value_op;

namespace {

constexpr double kLeastSquare = 1e-12;  ///< added to a squared norm, so that an embedding of 0 has a cosine of 0

TensorId loss_node(LayerBuilder& b, const char* op, std::vector<TensorId> inputs, Attrs attrs,
                   const std::string& name) {
  return b.emit(op, std::move(inputs), std::move(attrs), name)[0];
}

/// The sum of each row of x over the last dim.
TensorId row_sum(LayerBuilder& b, TensorId x, bool keep_dims, const std::string& name) {
  const auto last = static_cast<int64_t>(b.shape(x).size()) - 1;
  return loss_node(b, "reduce_sum", {x}, {{"dims", Ints{last}}, {"keep_dims", keep_dims}, {"scale", 1.0}}, name);
}

/// The squared norm of each row plus kLeastSquare.
TensorId square_norm(LayerBuilder& b, TensorId x, bool keep_dims, const std::string& name) {
  const TensorId squares = loss_node(b, "pow", {x}, {{"exponent", 2.0}}, name + ".squares");
  const TensorId sum = row_sum(b, squares, keep_dims, name + ".sum");
  return loss_node(b, "scale", {sum}, {{"factor", 1.0}, {"shift", kLeastSquare}}, name + ".square");
}

/// The rows of x divided by their norms.
TensorId normalized(LayerBuilder& b, TensorId x, const std::string& name) {
  const TensorId inverse =
      loss_node(b, "pow", {square_norm(b, x, true, name)}, {{"exponent", -0.5}}, name + ".inverse");
  return loss_node(b, "mul", {x, inverse}, {}, name);
}

void expect_alike(const char* loss, LayerBuilder& b, const std::vector<TensorId>& outputs, size_t least, size_t most) {
  const Shape& first = b.shape(outputs[0]);
  if (first.size() < least || first.size() > most)
    shape_error(fmt::format("{} compares embeddings {}, but got {}", loss, most == 2 ? "[n, d]" : "[n, .., d]",
                            to_string(first)));
  for (const TensorId output : outputs)
    if (b.shape(output) != first)
      shape_error(fmt::format("{} compares outputs of one shape, but got {} and {}", loss, to_string(first),
                              to_string(b.shape(output))));
}

TensorId cosines(LossLayers& layers, const LossInputs& inputs, const Attrs&) {
  const std::vector<TensorId>& outputs = inputs.outputs;
  LayerBuilder& b = layers.add("cosine");
  expect_alike("cosine_embedding", b, outputs, 2, kMaxDims);
  const TensorId product = loss_node(b, "mul", {outputs[0], outputs[1]}, {}, "products");
  const TensorId dot = row_sum(b, product, false, "dot");
  const TensorId squares = loss_node(
      b, "mul", {square_norm(b, outputs[0], false, "a"), square_norm(b, outputs[1], false, "b")}, {}, "squares");
  const TensorId inverse = loss_node(b, "pow", {squares}, {{"exponent", -0.5}}, "inverse");
  const TensorId cosine = loss_node(b, "mul", {dot, inverse}, {}, "");
  b.finish({cosine});
  return cosine;
}

/// |a - b + 1e-6|, as torch.nn.functional.pairwise_distance.
TensorId row_distance(LayerBuilder& b, TensorId from, TensorId to, const std::string& name) {
  const TensorId off = loss_node(b, "sub", {from, to}, {}, name + ".difference");
  const TensorId shifted = loss_node(b, "scale", {off}, {{"factor", 1.0}, {"shift", 1e-6}}, name + ".shifted");
  const TensorId squares = loss_node(b, "pow", {shifted}, {{"exponent", 2.0}}, name + ".squares");
  return loss_node(b, "sqrt", {row_sum(b, squares, false, name + ".sum")}, {}, name);
}

TensorId triplets(LossLayers& layers, const LossInputs& inputs, const Attrs& attrs) {
  const std::vector<TensorId>& outputs = inputs.outputs;
  LayerBuilder& b = layers.add("triplet");
  expect_alike("triplet", b, outputs, 2, kMaxDims);
  const TensorId near = row_distance(b, outputs[0], outputs[1], "positive"),
                 far = row_distance(b, outputs[0], outputs[2], "negative");
  const TensorId off = loss_node(b, "sub", {near, far}, {}, "difference");
  const TensorId above = loss_node(b, "scale", {off}, {{"factor", 1.0}, {"shift", attrs.number("margin")}}, "above");
  const TensorId loss = loss_node(b, "relu", {above}, {}, "");
  b.finish({loss});
  return loss;
}

/// The negated log-probability of row i of `keys` for row i of `queries`, times `weight`.
TensorId log_losses(LayerBuilder& b, TensorId queries, TensorId keys, double temperature, double weight) {
  const TensorId squares = square_norm(b, queries, true, "query");
  b.share_factors(keys, 1, queries, 1);  // the features, over which the product sums
  const TensorId inverse = loss_node(b, "pow", {squares}, {{"exponent", -0.5}}, "query.inverse");
  const TensorId query = loss_node(b, "mul", {queries, inverse}, {}, "query");
  const TensorId key = normalized(b, keys, "key");
  const TensorId cosine = loss_node(b, "matmul", {query, key}, {{"transpose_b", true}}, "cosines");
  const TensorId logits = loss_node(b, "scale", {cosine}, {{"factor", 1.0 / temperature}}, "logits");
  const TensorId norms = loss_node(b, "reshape", {squares}, {{"shape", Shape{b.shape(squares)[0]}}}, "norms");
  const TensorId own = loss_node(b, "row_index", {norms}, {}, "own");
  const TensorId probability = loss_node(b, "label_log_prob", {logits, own}, {}, "log_prob");
  const TensorId loss = loss_node(b, "scale", {probability}, {{"factor", -weight}}, "");
  b.finish({loss});
  return loss;
}

/// The losses of all queries and, with symmetric, half of each of the losses of queries and of keys.
TensorId info_nce(LossLayers& layers, const LossInputs& inputs, const Attrs& attrs) {
  const std::vector<TensorId>& outputs = inputs.outputs;
  const double temperature = attrs.number("temperature");
  const bool symmetric = attrs.flag("symmetric");
  LayerBuilder& queries = layers.add("queries");
  expect_alike("info_nce", queries, outputs, 2, 2);
  const TensorId by_query = log_losses(queries, outputs[0], outputs[1], temperature, symmetric ? 0.5 : 1.0);
  if (!symmetric) return by_query;
  const TensorId by_key = log_losses(layers.add("keys"), outputs[1], outputs[0], temperature, 0.5);
  LayerBuilder& both = layers.add("both");
  const TensorId sum = loss_node(both, "add", {by_query, by_key}, {}, "");
  both.finish({sum});
  return sum;
}

}  // namespace

extern const OpDef row_index_op = {
    .name = "row_index",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("row_index", in, 1, 1);
      if (in[0].shape.size() != 1) shape_error(fmt::format("row_index expects [n], but got {}", to_string(in[0])));
      return {{in[0].shape, DType::i32}};
    },
    .rule = [](Infos, const Attrs&) -> RuleText { return {"a->a"}; },
    .kernel = {.name = "row_index",
               .cost = [](Infos, Infos out,
                          const Attrs&) { return Cost{.bytes = static_cast<double>(bytes_of(out[0]))}; },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y[i] = i", .inputs = {{kFlat}}, .reads_inputs = false};
                   }},
};

extern const LossDef cosine_embedding_loss = {
    .name = "cosine_embedding",
    .doc =
        "mean of 1 - c where the label is 1, and of max(0, c - margin) where it is -1; c is the cosine of two outputs",
    .fields = {number("margin", "Cosine similarity below which different embeddings have no loss.")
                   .defaults(0.0)
                   .at_least(-1)
                   .at_most(1)},
    .op = &cosine_embedding_op,
    .num_outputs = 2,
    .compose = cosines,
};

extern const LossDef triplet_loss = {
    .name = "triplet",
    .doc = "mean of max(0, |a - p| - |a - n| + margin) of three outputs: anchor, positive, negative; it has no label",
    .fields = {number("margin",
                      "Minimum amount by which the negative should be farther from the anchor than the positive.")
                   .defaults(1.0)
                   .at_least(0)},
    .op = &mean_value_op,
    .num_outputs = 3,
    .label_use = LabelUse::none,
    .compose = triplets,
};

extern const LossDef info_nce_loss = {
    .name = "info_nce",
    .doc =
        "mean cross-entropy of cosines / temperature for two outputs [n, d], queries and keys: each query is compared "
        "with all keys of the micro-batch, over all ranks, and the key of its own row is its class; it has no label",
    .fields = {number("temperature", "Temperature by which the cosines are divided.").defaults(0.07).above(0),
               flag("symmetric", true,
                    "Also compute the loss with queries and keys exchanged, and take the mean of both (CLIP).")},
    .op = &mean_value_op,
    .num_outputs = 2,
    .label_use = LabelUse::none,
    .compose = info_nce,
};

extern const OpFamily contrastive_family = {.ops = {&row_index_op},
                                            .losses = {&cosine_embedding_loss, &triplet_loss, &info_nce_loss}};

}  // namespace trainctl
