// out = softmax(scale * q k^T) v, for each query head; no matrix of rows by keys is ever in memory.
//   packed   x [b, t, (g, r + 2, d)]: for each of g kv heads the r query heads that use it, its key and its value;
//            with attr packing: qkv, x [b, t, (all query heads, all keys, all values)]
//   apart    q [b, t, (g, r, d)], k [b, s, (g, d)], v [b, s, (g, e)]: heads of v may have a size of their own
// and last, if given, a mask [b, s]: keys with 0 are left out; with attr mask: documents it has, for each row, the
// index of the first row of its document, and a row sees only keys of its own. With attr causal row i of the queries
// sees keys 0 .. i, with attr window: N only i - N + 1 .. i. With attr softcap a score x becomes softcap * tanh(x /
// softcap). Outputs: out [b, t, (g, r, e)], and for the backward pass the log of each row's sum of exponentials, [b, g,
// r, t]. A row that sees no key is 0, and so is its log. With attr exchanges_keys the ranks that share the rows
// exchange keys and values (key_exchange.h). With attr sinks another last input adds a term to each sum (sinks.h), and
// with attr score_bias an input before it is added to the scores; alibi and dropout: score_terms.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/attention/sinks.h"
#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/row_order.h"

namespace trainctl {

extern const OpDef attention_sinks_grad_op;  // attention_sinks.cpp

namespace {

constexpr int64_t kMostHeadDim = 256;
/// The cost of a score with terms, in exponentials: a bias or a random number takes about as long as one.
constexpr double kCostWithTerms = 2;

bool is_packed(Infos in) { return in.size() <= 2; }
bool has_mask(Infos in) { return in.size() % 2 == 0; }
bool reads_documents(const Attrs& attrs) { return attrs.text("mask") == "documents"; }
bool side_by_side(const Attrs& attrs) { return attrs.text("packing", "heads") == "qkv"; }

/// Checks the inputs up to and including the mask, and returns the sizes.
AttentionSize size_of(std::string_view op, Infos in, const Attrs& attrs) {
  expect_inputs(op, in, 1, 4);
  const bool packed = is_packed(in);
  expect_floats(op, in.first(packed ? 1 : 3));
  for (const TensorInfo& each : in.first(packed ? 1 : 3)) {
    if (each.shape.size() != 3)
      shape_error(fmt::format("{} expects [batch, rows, features], but got {}", op, to_string(each)));
  }
  const Shape& x = in[0].shape;
  const int64_t d = attrs.integer("head_dim");
  if (d < 1 || d > kMostHeadDim)
    shape_error(fmt::format("{}: the heads have {} features, expected 1 to {}", op, d, kMostHeadDim));
  AttentionSize size{.b = x[0], .t = x[1], .d = d, .e = d};
  if (packed) {
    size.s = size.t;
    size.r = attrs.integer("group", 1);
    const int64_t unit = (size.r + 2) * d;
    if (size.r < 1 || x[2] % unit != 0)
      shape_error(
          fmt::format("{}: the last dim of {} is not a multiple of {}: {} query heads, one key and one value "
                      "head of {}",
                      op, to_string(in[0]), unit, size.r, d));
    size.g = x[2] / unit;
  } else {
    size.s = in[1].shape[1];
    size.g = in[1].shape[2] / d;
    if (in[1].shape[0] != size.b || in[1].shape[2] % d != 0)
      shape_error(fmt::format("{}: the keys are {}, expected [{}, rows, heads x {}]", op, to_string(in[1]), size.b, d));
    if (x[2] % in[1].shape[2] != 0)
      shape_error(fmt::format("{}: the queries are {}, expected a multiple of the {} features of the keys", op,
                              to_string(in[0]), in[1].shape[2]));
    size.r = x[2] / in[1].shape[2];
    const Shape& v = in[2].shape;
    if (v[0] != size.b || v[1] != size.s || v[2] % size.g != 0)
      shape_error(fmt::format("{}: the values are {}, expected [{}, {}, {} heads x features]", op, to_string(in[2]),
                              size.b, size.s, size.g));
    size.e = v[2] / size.g;
    if (size.e > kMostHeadDim)
      shape_error(
          fmt::format("{}: the heads of the values have {} features, expected at most {}", op, size.e, kMostHeadDim));
  }
  // A call that computes a part of the keys still gets the mask of all keys.
  if (has_mask(in))
    expect_shape(op, "the mask", in.back(), {size.b, attrs.flag(kExchangesKeys) ? in.back().shape[1] : size.s});
  if (attrs.integer("window", 0) > 0 && !attrs.flag("causal"))
    shape_error(fmt::format("{}: a window requires causal", op));
  return size;
}

/// Lets the rule shard the kv heads together with their query heads or, if there is a single kv head (`one`), the query
/// heads.
RuleText with_heads(RuleText attention_rule, int64_t heads, bool one) {
  attention_rule.sizes = {{'g', heads}};
  if (!one)
    attention_rule.why_size =
        fmt::format("only whole heads of keys and values can be cut, and their number is {}", heads);
  return attention_rule;
}

/// The rule for ranks that exchange keys and values: queries and keys are the rows of one sequence, so sharding the
/// rows shards both.
RuleText rule_with_exchange(Infos in, const Attrs& attrs) {
  const std::string mask = has_mask(in) ? ",bt" : "";
  const AttentionSize size = size_of("attention", in, attrs);
  const std::string whole_heads = "attention needs whole heads on one rank";
  const std::string queries = size.r == 1 ? "d" : "n", values = size.e == size.d ? "d" : "e";
  const std::string letters = std::string("dm") + (size.r == 1 ? "" : "n") + (size.e == size.d ? "" : "e");
  if (side_by_side(attrs))
    return {"bt" + queries + ",btd,btd" + mask + "->btm,bgrt", letters + "gr",
            "packing: qkv stores each head in three places; use packing: heads or three inputs to cut by heads"};
  const std::string g = size.g == 1 ? "(" : "(g";
  RuleText rule{"bt" + g + queries + "),bt" + g + "d),bt" + g + values + ")" + mask + "->bt" + g + "m),bgrt",
                letters + "r", whole_heads};
  return with_heads(std::move(rule), size.g, false);
}

RuleText rule_without_extras(Infos in, const Attrs& attrs) {
  if (attrs.flag(kExchangesKeys)) return rule_with_exchange(in, attrs);
  const std::string mask = has_mask(in) ? (is_packed(in) ? ",bt" : ",bs") : "";
  const std::string whole_keys = "attention needs all keys and whole heads on one rank";
  if (!is_packed(in)) {
    // If there are several kv heads, they are sharded together with the query heads that use them.
    const AttentionSize size = size_of("attention", in, attrs);
    const bool one = size.g == 1;
    const std::string e = size.e == size.d ? "d" : "e", whole = std::string("sd") + (e == "d" ? "" : e);
    return with_heads(
        {"bt(grd),bs(gd),bs(g" + e + ")" + mask + "->bt(gr" + e + "),bgrt", whole + (one ? "" : "r"), whole_keys},
        size.g, one);
  }
  if (side_by_side(attrs))
    return {"btn" + mask + "->btm,bgrt", "tnmgr",
            "attention needs all keys on one rank, and packing: qkv stores each head in three places; use packing: "
            "heads or three inputs to cut by heads"};
  return with_heads({"bt(gn)" + mask + "->bt(gm),bgrt", "tnmr",
                     whole_keys + "; query rows can be cut if q, k and v are three inputs"},
                    size_of("attention", in, attrs).g, false);
}

RuleText attention_rule(Infos in, const Attrs& attrs) {
  RuleText rule = rule_without_extras(without_extras(in, attrs), attrs);
  if (attrs.has(kScoreBias)) add_score_bias(rule, without_sinks(in, attrs).back(), attrs, side_by_side(attrs));
  if (attrs.flag(kSinks)) add_sinks(rule, side_by_side(attrs));
  return rule;
}

/// (dy, inputs, out, logs) -> the gradient of each input except the mask. The gradients of the bias and of the sinks
/// are computed by separate nodes.
void attention_backward(GradBuilder& g) {
  Attrs attrs = g.attrs();
  const bool has_sinks = attrs.flag(kSinks);
  const int count = g.num_inputs() - (has_sinks ? 1 : 0);  // includes the bias
  const bool has_bias = attrs.has(kScoreBias);
  attrs.erase(kSinks);
  std::vector<TensorId> inputs = {g.out_grad()};
  for (int i = 0; i < count; ++i) inputs.push_back(g.in(i));
  inputs.push_back(g.out(0));
  inputs.push_back(g.out(1));
  const std::vector<int> which = count - (has_bias ? 1 : 0) <= 2 ? std::vector<int>{0} : std::vector<int>{0, 1, 2};
  if (has_sinks) {
    Attrs of_sinks;
    if (attrs.has(kRowOrder)) of_sinks.set(kRowOrder, attrs.integer(kRowOrder));
    g.set_in_grad(count, attention_sinks_grad_op.name, {g.out_grad(), g.out(0), g.out(1), g.in(count)}, of_sinks);
  }
  if (has_bias) {
    Attrs of_bias = attrs;
    if (!g.is_parameter(g.in(count - 1))) of_bias.set(kBiasIsActivation, true);
    g.set_in_grad(count - 1, attention_score_bias_grad_op.name, inputs, std::move(of_bias));
  }
  g.set_in_grads(which, "attention_grad", std::move(inputs), std::move(attrs));
}

/// The fraction of all scores that is computed, on the rank with the most. If rows are sharded by position, the rank
/// with the last rows sees most keys, and all ranks wait for it. With balanced rows (row_order.h) each rank sees the
/// mean.
double seen_part(const AttentionSize& size, const Attrs& attrs) {
  if (!attrs.flag("causal")) return 1;
  const double keys = static_cast<double>(size.s), window = static_cast<double>(attrs.integer("window", 0));
  const double width = window > 0 ? std::min(window, keys) : keys;
  const auto seen_by_first = [&](double rows) {
    return rows <= width ? rows * rows / 2 : width * rows - width * width / 2;
  };
  const bool is_balanced = attrs.flag(kExchangesKeys) && !attrs.flag(kConsecutiveRows);
  const double rows = is_balanced ? keys : std::min(static_cast<double>(size.t), keys);
  return (seen_by_first(keys) - seen_by_first(keys - rows)) / (rows * keys);
}

/// Counts the work of a call: the products [rows, keys] over the features of keys, the products over the features of
/// values, and the matrices [rows, keys] that are computed element by element, each at the cost of exponentials.
struct Products {
  double of_keys, of_values, matrices;
};

Cost cost_of(Infos in, Infos operands_in, Infos out, const Attrs& attrs, const Products& products) {
  const AttentionSize size = size_of("attention", without_extras(in, attrs), attrs);
  Cost cost = traffic_cost(operands_in, out, 0);
  const double scores = static_cast<double>(size.b * size.g * size.r) * static_cast<double>(size.t * size.s);
  const double seen = scores * seen_part(size, attrs);
  cost.flops =
      seen *
      (2.0 * (products.of_keys * static_cast<double>(size.d) + products.of_values * static_cast<double>(size.e)) + 8.0);
  cost.exponentials = seen * products.matrices;
  if (has_score_terms(attrs)) cost.exponentials *= kCostWithTerms;
  return cost;
}

/// The forward inputs among those of the gradient.
Infos forward_inputs(Infos in) { return in.subspan(1, in.size() - 3); }

void expect_grad(Infos in) {
  using namespace example;
  expect(in.size() >= 4 && in.size() <= 8,
         "it expects dy, the inputs of attention, its output and the logs of the "
         "rows");
  expect_shape(in[in.size() - 2], in[0].shape, "the output");
}

/// The scratch memory in bytes that suffices for every kernel of the gradient: cuDNN, the kernel that computes it in
/// one pass, and the other kernels, which keep one number per row, or two per row with the rows rounded up to tiles.
int64_t most_grad_scratch(const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
  const Shape& logs = inputs.back();
  AttentionSize n{.b = logs[0], .t = logs[3], .s = logs[3], .g = logs[1], .r = logs[2]};
  n.d = n.e = inputs[0][2] / n.heads();
  if (outputs.size() == 3) n.s = outputs[1][1], n.d = outputs[0][2] / n.heads();
  int64_t most = 8 * n.b * n.heads() * ((n.t + 63) / 64 * 64);
  for (const bool uniform : {false, true}) {
    const AttentionSlice slice = grad_slice(n, uniform);
    if (slice.b > 0) most = std::max(most, grad_workspace(n, slice));
  }
  if (const AttentionSlice slice = query_slice(n); n.r > 1 && slice.b > 0)
    most = std::max(most, parts_and_workspace(n, slice));
  for (const bool causal : {false, true}) {
    if (one_pass_takes(n)) most = std::max(most, OnePassMemory(n, causal).bytes());
  }
  if (wide_takes(n)) most = std::max(most, WideMemory::most_bytes(n));
  return most;
}

Attrs optional_attrs() {
  return {{kAlibi, true},           {kScoreBias, std::string("hrk")},
          {kScoreDropout, 0.1},     {kScoreDropoutKey, int64_t{1}},
          {"batch", Ints{4, 0, 1}}, {"packing", std::string("heads")},
          {"window", int64_t{256}}, {"softcap", 50.0},
          {kExchangesKeys, true},   {kPartOfKeys, true},
          {kConsecutiveRows, true}, {kRowOrder, int64_t{4}},
          {kRowGroups, int64_t{2}}};
}
Attrs optional_forward_attrs() {
  Attrs attrs = optional_attrs();
  attrs.set(kSinks, true);
  return attrs;
}
Attrs example_attention() {
  return {{"head_dim", int64_t{64}}, {"group", int64_t{1}}, {"causal", true}, {"scale", 0.125}};
}

}  // namespace

extern const KernelDef attention_merge_kernel = {
    .name = "attention_merge",
    .cost = elementwise_cost<5>,
    .example =
        [] {
          using namespace example;
          const Shape rows = {4, 1024, 768}, logs = {4, 12, 1, 1024};
          return KernelExample{.what = "out, logs of two blocks of keys; inputs: out and logs of each",
                               .inputs = {{rows}, f32(logs), {rows}, f32(logs)},
                               .optional = {{"last", true}},
                               .outputs = [](Infos in, const Attrs&, DType) -> std::vector<TensorInfo> {
                                 expect(in.size() == 4, "it expects out and logs of two blocks of keys");
                                 return {in[0], in[1]};
                               }};
        },
};

extern const KernelDef reorder_rows_kernel = {
    .name = "reorder_rows",
    .cost = elementwise_cost<0>,
    .example =
        [] {
          return KernelExample{.what = "rows by position; input: rows in the order of ranks that share them",
                               .inputs = {{{4, 1024, 1024}}},
                               .attrs = {{kRowOrder, int64_t{4}}},
                               .optional = {{"to_order", true}, {kRowGroups, int64_t{2}}},
                               .outputs = example::like_first};
        },
};

extern const OpDef attention_op = {
    .name = "attention",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      const Infos all = in;
      in = without_extras(in, attrs);
      const AttentionSize a = size_of("attention", in, attrs);
      const double p = attrs.number(kScoreDropout, 0);
      if (!(p >= 0 && p < 1)) shape_error(fmt::format("attention: dropout is {}, expected 0 <= dropout < 1", p));
      if (attrs.has(kScoreBias)) expect_score_bias(without_sinks(all, attrs).back(), attrs, {a.b, a.heads(), a.t, a.s});
      if (attrs.flag(kSinks)) expect_shape("attention", "the input of sinks", all.back(), {a.heads()});
      if (reads_documents(attrs) && (!has_mask(in) || in.back().dtype != DType::i32 || a.t != a.s))
        shape_error(fmt::format(
            "attention: mask: documents needs as many queries as keys, and a last input i32 [{}, {}]", a.b, a.s));
      return {{{a.b, a.t, a.g * a.r * a.e}, in[0].dtype}, {{a.b, a.g, a.r, a.t}}};
    },
    .rule = attention_rule,
    .backward = attention_backward,
    .kernel = {.name = "attention",
               .cost =
                   [](Infos in, Infos out, const Attrs& attrs) {
                     return cost_of(in, in, out, attrs, {1, 1, 1});
                   },
               .example =
                   [] {
                     return KernelExample{
                         .what = "out, log of sums; packed q, k and v, or three inputs(, mask)(, bias)(, sinks)",
                         .inputs = {{{4, 1024, 2304}}},
                         .attrs = example_attention(),
                         .optional = optional_forward_attrs()};
                   }},
    .training_attr = kScoreDropout,
    .in_generation = InGeneration::reads_caches,
};

/// (dy, inputs, out, logs) -> dx, or dq, dk, dv
extern const OpDef attention_grad_op = {
    .name = "attention_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("attention_grad", in, 4, 8);
      if (is_packed(without_extras(forward_inputs(in), attrs))) return {in[1]};
      return {in[1], in[2], in[3]};
    },
    .kernel = {.name = "attention_grad",
               .cost =
                   [](Infos in, Infos out, const Attrs& attrs) {
                     return cost_of(forward_inputs(in), in, out, attrs, {3, 2, 3});
                   },
               .most_cuda_scratch = most_grad_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "dx, or dq, dk, dv; inputs dy, the inputs of attention, its output and logs",
                         .inputs = {{{4, 1024, 768}}, {{4, 1024, 2304}}, {{4, 1024, 768}}, f32({4, 12, 1, 1024})},
                         .attrs = example_attention(),
                         .optional = optional_attrs(),
                         .expect = expect_grad};
                   }},
};

extern const LayerDef attention_layer;  // attention_layer.cpp

extern const OpFamily attention_family = {
    .ops = {&attention_op, &attention_grad_op, &attention_sinks_grad_op, &attention_score_bias_grad_op},
    .kernels = {&attention_merge_kernel, &reorder_rows_kernel},
    .layers = {&attention_layer},
    .profile_part = "attention"};

}  // namespace trainctl
