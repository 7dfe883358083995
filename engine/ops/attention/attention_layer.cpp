// The layer `attention`: its fields, and the inputs of its op.
#include <fmt/format.h>

#include <cmath>

#include "engine/base/text.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/attention/sinks.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

bool is_side_by_side(const Attrs& attrs) { return attrs.text("packing", "heads") == "qkv"; }

/// The inputs of the layer and the sizes of its heads.
struct AttentionInputs {
  std::vector<TensorId> rows;  ///< packed q, k and v, or the three tensors; then the mask, if any
  TensorId bias = -1;          ///< bias of the scores; -1: none
  int64_t heads = 0, kv_heads = 0, head_dim = 0;

  bool is_packed() const { return rows.size() <= 2; }
};

/// q, k and v of the layer's packed input, as three tensors.
std::vector<TensorId> unpacked(LayerContext& layer, const AttentionInputs& in) {
  const Shape x = layer.shape();
  const int64_t group = in.heads / in.kv_heads;
  TensorId packed = in.rows[0];
  Ints sizes = {in.heads * in.head_dim, in.kv_heads * in.head_dim, in.kv_heads * in.head_dim};
  const bool by_heads = !is_side_by_side(layer.attrs) && in.kv_heads > 1;
  const auto reshaped = [&](TensorId tensor, Shape shape, const char* suffix) {
    return layer.builder.emit("reshape", {tensor}, {{"shape", std::move(shape)}}, suffix)[0];
  };
  if (by_heads) {
    packed = reshaped(packed, {x[0], x[1], in.kv_heads, (group + 2) * in.head_dim}, "heads");
    sizes = {group * in.head_dim, in.head_dim, in.head_dim};
  }
  const int64_t dim = by_heads ? 3 : 2;
  std::vector<TensorId> parts =
      layer.builder.emit("split", {packed}, {{"dim", dim}, {"sizes", sizes}, {"whole", true}}, "parts");
  for (size_t i = 0; i < parts.size() && by_heads; ++i) {
    static constexpr const char* kNames[] = {"q", "k", "v"};
    parts[i] = reshaped(parts[i], {x[0], x[1], in.kv_heads * sizes[i]}, kNames[i]);
  }
  return parts;
}

/// The inputs if ranks may share the rows: q, k, v(, mask).
std::vector<TensorId> exchanging_inputs(LayerContext& layer, const AttentionInputs& in) {
  if (!in.is_packed()) return in.rows;
  std::vector<TensorId> inputs = unpacked(layer, in);
  inputs.insert(inputs.end(), in.rows.begin() + 1, in.rows.end());
  return inputs;
}

/// The inputs that the layer names, with sizes that fit.
AttentionInputs inputs_of(LayerContext& layer) {
  AttentionInputs in{.rows = layer.inputs};
  in.heads = layer.attrs.integer("heads"), in.kv_heads = layer.attrs.integer("kv_heads", in.heads);
  const bool has_bias = layer.attrs.text("score_bias", "none") == "input";
  if (has_bias && in.rows.size() == 1)
    throw ShapeError("attention: with score_bias: input the last input is the bias, but there is one input",
                     "score_bias");
  if (has_bias) in.bias = in.rows.back(), in.rows.pop_back();
  if (in.rows.size() > 4)
    shape_error("attention: 5 inputs are q, k, v, a mask and a bias of the scores; add score_bias: input");
  const int64_t features = layer.shape().back(), parts = in.is_packed() ? in.heads + 2 * in.kv_heads : in.heads;
  if (features % parts != 0)
    throw ShapeError(fmt::format("attention: the {} features of {} cannot be divided into {} heads of the same size",
                                 features, to_string(layer.shape()), parts),
                     "heads");
  in.head_dim = features / parts;
  if (!in.is_packed() && layer.shape(1).back() != in.kv_heads * in.head_dim)
    throw ShapeError(fmt::format("attention: the keys are {}, expected {} kv heads of {} features",
                                 to_string(layer.shape(1)), in.kv_heads, in.head_dim),
                     "heads");
  if (!in.is_packed() && layer.shape(2).back() % in.kv_heads != 0)
    throw ShapeError(fmt::format("attention: the values are {}, whose features cannot be divided into {} kv heads",
                                 to_string(layer.shape(2)), in.kv_heads),
                     "heads");
  return in;
}

/// The dims of a bias: those of the last input, or of the layer's own (score_terms.h).
std::string dims_of_bias(const LayerContext& layer, TensorId bias) {
  const Tensor& tensor = layer.graph.tensors[static_cast<size_t>(bias)];
  const size_t ndim = tensor.shape.size();
  if (ndim < 2 || ndim > 4)
    throw ShapeError(fmt::format("attention: the bias of the scores is {}, expected [rows, keys], [heads, rows, keys], "
                                 "[batch, rows, keys] or [batch, heads, rows, keys]",
                                 to_string(tensor.shape)),
                     "score_bias");
  if (tensor.dtype == DType::i32)
    throw ShapeError("attention: the bias of the scores is i32; for a mask of whole numbers use mask: keys",
                     "score_bias");
  if (ndim == 2) return "rk";
  if (ndim == 4) return "bhrk";
  return tensor.batch.dim >= 0 || tensor.batch.is_sized(0) ? "brk" : "hrk";
}

/// The attrs of the terms of scores, and the bias if there is one.
void set_terms(LayerContext& layer, AttentionInputs& in, Attrs& attrs) {
  const Shape& q = layer.shape();
  const Shape& k = in.is_packed() ? q : layer.shape(1);
  if (layer.attrs.flag("alibi")) {
    if (q.size() == 3 && k.size() == 3 && q[1] != k[1])
      throw ShapeError(fmt::format("attention: alibi needs queries and keys of the same sequence, but there are {} and "
                                   "{} rows",
                                   q[1], k[1]),
                       "alibi");
    attrs.set(kAlibi, true);
  }
  if (layer.attrs.text("score_bias", "none") == "trained" && q.size() == 3 && k.size() == 3)
    in.bias = layer.weight({in.heads, q[1], k[1]}, constant_init(0));
  if (in.bias >= 0) attrs.set(kScoreBias, dims_of_bias(layer, in.bias));
  const double dropout = layer.attrs.number("dropout", 0);
  if (dropout == 0) return;
  attrs.set(kScoreDropout, dropout);
  attrs.set(kScoreDropoutKey, static_cast<int64_t>(stable_hash(layer.builder.name())));
  const BatchRows& rows = layer.batch();
  if (layer.micro_batches == 1) return;
  if (rows.dim > 1)
    throw ShapeError("attention: dropout with micro-batches needs the batch in dim 0 or 1 of its input", "dropout");
  attrs.set("batch", rows.dim < 0 ? Ints{layer.micro_batches, 0, 1} : Ints{layer.micro_batches, rows.dim, rows.outer});
}

/// The inputs of the op: `inputs`, the bias, and the sinks of the layer, if it has them.
std::vector<TensorId> with_extras(LayerContext& layer, std::vector<TensorId> inputs, const AttentionInputs& in,
                                  Attrs& attrs) {
  if (in.bias >= 0) inputs.push_back(in.bias);
  if (!layer.attrs.flag("sinks")) return inputs;
  attrs.set(kSinks, true);
  inputs.push_back(layer.builder.parameter("sinks", {in.heads}, constant_init(0)));
  return inputs;
}

}  // namespace

extern const LayerDef attention_layer = {
    .name = "attention",
    .doc =
        "Softmax attention of q, k and v, packed in one input or given as three; an additional input is a mask. With "
        "three inputs, keys and values may have a different number of rows than queries (cross-attention), and the "
        "heads "
        "of "
        "v may have a different size than those of q and k; the output's heads have the size of v's.",
    .fields =
        {integer("heads", "Number of query heads.").required().at_least(1).at_most(kMaxSize),
         integer("kv_heads",
                 "Number of key and value heads (grouped-query attention), which must divide heads. If omitted, the "
                 "same as heads.")
             .at_least(1)
             .at_most(kMaxSize),
         flag("causal", false, "Causal attention: row i attends only to rows 0 to i."),
         integer(
             "window",
             "Sliding-window attention: row i attends only to rows i - window + 1 to i; requires causal. 0: no window.")
             .defaults(int64_t{0})
             .at_least(0)
             .at_most(kMaxSize),
         number("softcap",
                "Soft cap of the scores: a score x becomes softcap * tanh(x / softcap) before the mask is applied "
                "(Gemma 2). 0: no soft cap.")
             .defaults(0.0)
             .at_least(0),
         flag("alibi", false,
              "Use ALiBi, which adds -slope * |i - j| to the score of row i and key j. If the number of heads n is a "
              "power of two, head h, counted from 1, has the slope 2^(-8h/n). For other numbers of heads, the slopes "
              "are the same as in the paper, BLOOM and MPT."),
         text("score_bias",
              "Tensor that is added to the scores after the soft cap: an additive mask or a bias. input: the last "
              "input, [rows, keys], [heads, rows, keys], [batch, rows, keys] or [batch, heads, rows, keys]; dims of "
              "size 1 are broadcast, and -inf masks a key. trained: the weight NAME.weight [heads, rows, keys], "
              "initially 0.")
             .one_of({"none", "input", "trained"})
             .defaults(std::string("none")),
         number("dropout",
                "Probability that an attention weight is set to 0 during training; the other weights are divided by 1 "
                "- dropout.")
             .defaults(0.0)
             .at_least(0)
             .below(1),
         text("mask",
              "Meaning of an additional input after q, k and v. keys: keys for which the input is 0 are masked. "
              "documents: the input (i32) contains the index of the first row of each row's document, and rows attend "
              "only to rows of their own document.")
             .one_of({"keys", "documents"})
             .defaults(std::string("keys")),
         number("scale", "Factor by which the scores are multiplied. If omitted, 1 / sqrt(features per head).")
             .above(0),
         flag("sinks", false,
              "Attention sinks (gpt-oss): each query head has a trained number s, the weight NAME.sinks [heads], "
              "initially 0, and e^s is added to the denominator of its softmax."),
         text("packing",
              "Layout of a packed input. heads: for each kv head, its query heads, k and v; this layout can be sharded "
              "by heads. qkv: all heads of q, then of k, then of v, as in GPT-2.")
             .one_of({"heads", "qkv"})
             .defaults(std::string("heads")),
         share_field(),
         make_field("init", FieldKind::initial, "Initial values of the weight (see below); zeros if omitted.")},
    .min_inputs = 1,
    .max_inputs = 5,
    .faults = [](const Attrs& attrs) -> std::vector<FieldFault> {
      const int64_t heads = attrs.integer("heads", 1), kv_heads = attrs.integer("kv_heads", heads);
      if (kv_heads >= 1 && heads % kv_heads != 0)
        return {{"kv_heads", fmt::format("{} query heads are not divisible by {} kv heads", heads, kv_heads), ""}};
      if (attrs.integer("window", 0) > 0 && !attrs.flag("causal"))
        return {{"window", "a window requires causal: true", "add causal: true, or remove window"}};
      const bool has_weight = attrs.text("score_bias", "none") == "trained";
      const char* of_weight = !attrs.text("share").empty()           ? "share"
                              : !nested_attrs(attrs, "init").empty() ? "init"
                                                                     : "";
      if (!has_weight && *of_weight != 0)
        return {{of_weight, "attention has such a weight only with score_bias: trained",
                 fmt::format("add score_bias: trained, or remove {}", of_weight)}};
      return {};
    },
    .emit =
        [](LayerContext& layer) {
          AttentionInputs in = inputs_of(layer);
          const int64_t head_dim = in.head_dim;
          Attrs attrs{{"head_dim", head_dim},
                      {"causal", layer.attrs.flag("causal")},
                      {"scale", layer.attrs.number("scale", 1.0 / std::sqrt(static_cast<double>(head_dim)))}};
          // A window of all rows, and fields that have no effect, leave the op as it is without them.
          const int64_t window = layer.attrs.integer("window");
          if (window > 0 && layer.shape().size() == 3 && window < layer.shape()[1]) attrs.set("window", window);
          if (layer.attrs.number("softcap") > 0) attrs.set("softcap", layer.attrs.number("softcap"));
          if (layer.attrs.text("mask") == "documents") attrs.set("mask", std::string("documents"));
          set_terms(layer, in, attrs);
          const bool packed = in.is_packed();
          const bool own_rows = layer.shape().size() == 3 &&
                                (packed || (layer.shape(1).size() == 3 && layer.shape(1)[1] == layer.shape()[1]));
          if (layer.context > 1 && own_rows && head_dim > 1) {
            attrs.set(kExchangesKeys, true);
            if (packed) attrs.set("packing", layer.attrs.text("packing"));
            if (layer.row_order > 1) attrs.set(kRowOrder, int64_t{layer.row_order});
            std::vector<TensorId> inputs = with_extras(layer, exchanging_inputs(layer, in), in, attrs);
            return layer.builder.emit("attention", std::move(inputs), std::move(attrs))[0];
          }
          if (packed) {
            attrs.set("group", in.heads / in.kv_heads);
            attrs.set("packing", layer.attrs.text("packing"));
          }
          std::vector<TensorId> inputs = with_extras(layer, in.rows, in, attrs);
          return layer.builder.emit("attention", std::move(inputs), std::move(attrs))[0];
        },
};

}  // namespace trainctl
