// Causal attention of a few new rows to all rows so far, whose keys and values are in caches (text generation):
//   packed   x [b, t, (g, r + 2, d)], or with attr packing: qkv in that order, as in attention
//   apart    q [b, t, (g, r, d)], k [b, t, (g, d)], v [b, t, (g, e)]
// after the caches [b, positions, (g, d)] and [b, positions, (g, e)] and starts [b], i32. Row i of a sample has
// position p = starts[b] + i. Its key and value are written to row p of the caches, and it attends to rows 0 to p of
// them, or with attr window: N to the last N of these. Rows beyond the caches write nothing, and their output is 0.
// Attrs are those of attention, without a bias of the scores and dropout; with attr sinks the last input has the sinks
// (attention/sinks.h). out [b, t, (g, r, e)]
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/cached_attention/cached_attention_shape.h"
#include "engine/ops/cached_attention/key_splits.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

constexpr int64_t kMostFeatures = 256;

bool is_packed_call(Infos in) { return in.size() == kCacheInputs + 1; }

AttentionSize size_of_packed(const Shape& x, int64_t d, const Attrs& attrs) {
  const int64_t r = attrs.integer("group", 1), unit = (r + 2) * d;
  if (x[2] % unit != 0)
    shape_error(fmt::format("cached_attention: the last dim of {} is not a multiple of {}", to_string(x), unit));
  return {.b = x[0], .t = x[1], .s = x[1], .g = x[2] / unit, .r = r, .d = d, .e = d};
}

AttentionSize size_of_apart(Infos in, int64_t d) {
  const Shape &q = in[0].shape, &k = in[1].shape, &v = in[2].shape;
  const int64_t g = k[2] / d;
  if (k[2] % d != 0 || q[2] % k[2] != 0 || v[2] % g != 0)
    shape_error(fmt::format("cached_attention: queries {}, keys {} and values {} do not have heads of {} features",
                            to_string(q), to_string(k), to_string(v), d));
  return {.b = q[0], .t = q[1], .s = q[1], .g = g, .r = q[2] / k[2], .d = d, .e = v[2] / g};
}

/// Checks the inputs other than the sinks, and returns the sizes of the heads.
AttentionSize size_of_call(Infos in, const Attrs& attrs) {
  if (in.size() != 4 && in.size() != 6)
    shape_error(fmt::format("cached_attention expects 4 or 6 inputs, but got {}", in.size()));
  const Infos rows = in.subspan(kCacheInputs);
  for (const TensorInfo& each : rows)
    if (each.shape.size() != 3)
      shape_error(fmt::format("cached_attention expects [batch, rows, features], but got {}", to_string(each)));
  const int64_t d = attrs.integer("head_dim");
  const AttentionSize size = is_packed_call(in) ? size_of_packed(rows[0].shape, d, attrs) : size_of_apart(rows, d);
  if (std::max(size.d, size.e) > kMostFeatures)
    shape_error(fmt::format("cached_attention: the heads have {} features, expected at most {}",
                            std::max(size.d, size.e), kMostFeatures));
  const int64_t positions = in[0].shape.size() == 3 ? in[0].shape[1] : 0;
  expect_shape("cached_attention", "the cache of keys", in[0], {size.b, positions, size.g * size.d});
  expect_shape("cached_attention", "the cache of values", in[1], {size.b, positions, size.g * size.e});
  expect_shape("cached_attention", "the input of first positions", in[2], {size.b});
  if (in[2].dtype != DType::i32) shape_error("cached_attention: the first positions are not i32");
  return size;
}

/// The sharding rule without sinks: only the batch and, if the heads are separate or grouped, the kv heads can be
/// sharded.
RuleText rule_of_cached(Infos in, const Attrs& attrs) {
  const AttentionSize size = size_of_call(in, attrs);
  const std::string why = "cached attention needs all positions and whole heads on one rank";
  if (!is_packed_call(in)) {
    const std::string e = size.e == size.d ? "d" : "e";
    const std::string text = fmt::format("bs(gd),bs(g{0}),b,bt(grd),bt(gd),bt(g{0})->bt(gr{0})", e);
    return {.text = text,
            .uncuttable = std::string("tsd") + (size.g == 1 ? "" : "r") + (e == "d" ? "" : e),
            .why_not = why,
            .sizes = {{'g', size.g}}};
  }
  if (attrs.text("packing", "heads") == "qkv")
    return {.text = "bsk,bsk,b,btn->btm", .uncuttable = "tnskm", .why_not = why};
  return {.text = "bs(gd),bs(gd),b,bt(gn)->bt(gm)", .uncuttable = "tnsdm", .why_not = why, .sizes = {{'g', size.g}}};
}

RuleText cached_attention_rule(Infos in, const Attrs& attrs) {
  RuleText rule = rule_of_cached(without_sinks(in, attrs), attrs);
  if (!attrs.flag(kSinks)) return rule;
  const bool is_packed = is_packed_call(without_sinks(in, attrs)),
             keeps_all_heads = attrs.text("packing", "heads") == "qkv";
  add_sinks(rule, keeps_all_heads);
  if (is_packed && !keeps_all_heads) rule.uncuttable += "r";  // a group of queries is packed with its key and value
  return rule;
}

Cost cached_attention_cost(Infos in, Infos out, const Attrs& attrs) {
  const AttentionSize size = size_of_call(without_sinks(in, attrs), attrs);
  Cost cost = traffic_cost(in, out, 0);
  const auto scores = static_cast<double>(size.b * size.heads() * size.t * in[0].shape[1]);
  cost.flops = scores * (2.0 * static_cast<double>(size.d + size.e) + 8.0);
  cost.exponentials = scores;
  return cost;
}

/// Scratch memory in bytes: for each row of queries and each part of its keys, the largest score, the sum of
/// exponentials, and the weighted sum of values.
int64_t scratch_of_parts(const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
  const Shape& out = outputs[0];
  return key_parts_bytes(num_elements(out), out[0] * out[1] * out[2], inputs[0][1]);
}

}  // namespace

extern const OpDef cached_attention_op = {
    .name = "cached_attention",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      const AttentionSize a = size_of_call(without_sinks(in, attrs), attrs);
      if (attrs.flag(kSinks)) expect_shape("cached_attention", "the input of sinks", in.back(), {a.heads()});
      return {{{a.b, a.t, a.heads() * a.e}, in[0].dtype}};
    },
    .rule = cached_attention_rule,
    .kernel = {.name = "cached_attention",
               .updates_input = 0b11,
               .cost = cached_attention_cost,
               .most_cuda_scratch = scratch_of_parts,
               .example =
                   [] {
                     return KernelExample{
                         .what =
                             "out; inputs: caches, first positions, packed q, k and v of new rows, or three "
                             "inputs(, sinks)",
                         .inputs = {{{4, 1024, 1024}},
                                    {{4, 1024, 1024}},
                                    {{4}, KernelExample::Fill::indices},
                                    {{4, 1, 3072}}},
                         .attrs = {{"head_dim", int64_t{64}}, {"group", int64_t{1}}, {"scale", 0.125}},
                         .optional = {{"packing", std::string("heads")},
                                      {"causal", true},
                                      {"window", int64_t{256}},
                                      {"softcap", 50.0},
                                      {kAlibi, true},
                                      {kSinks, true}},
                         .below = [](Infos in, const Attrs&) { return in[0].shape[1]; }};
                   }},
};

extern const OpFamily cached_attention_family = {.ops = {&cached_attention_op}, .profile_part = "attention"};

}  // namespace trainctl
