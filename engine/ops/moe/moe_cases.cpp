// Cases of moe: the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/ops/moe/expert_load.h"
#include "engine/ops/moe/experts_size.h"
#include "tests/op_cases/naive_moe.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive_moe;

Attrs balance_attrs(int64_t rows, const char* score, double coefficient, double z_loss, int64_t of_load = 0) {
  return {{"top_k", int64_t{2}},
          {"score", std::string(score)},
          {"rows", rows},
          {"of_load", of_load == 0 ? rows : of_load},
          {"coefficient", coefficient},
          {"z_loss", z_loss}};
}
Attrs by_sequence(Attrs attrs) {
  attrs.set("by_sequence", true);
  return attrs;
}

/// A load of 16 pairs of each expert and anything for the rest.
CaseOperand case_load(Shape shape) { return {.shape = std::move(shape), .fill = CaseOperand::Fill::positive}; }

void add_token_exchanges(std::vector<KernelCase>& calls);

std::vector<KernelCase> router_kernels() {
  std::vector<KernelCase> calls;
  for (const char* score : {"softmax", "sigmoid"}) {
    calls.push_back({.kernel = "balance_losses_grad",
                     .in = {{.shape = {2, 5, 7}}, case_load({17})},
                     .out = {{.shape = {2, 5, 7}}},
                     .attrs = balance_attrs(10, score, 0.5, 0.25),
                     .tolerance = 1e-5});
    calls.push_back({.kernel = "balance_losses_grad",
                     .in = {{.shape = {3, 4, 40}}, case_load({3, 40})},
                     .out = {{.shape = {3, 4, 40}}},
                     .attrs = by_sequence(balance_attrs(12, score, 2, 0, 4)),
                     .tolerance = 1e-5});
    calls.push_back({.kernel = "balance_losses_grad",
                     .in = {{.shape = {11, 6}}},
                     .out = {{.shape = {11, 6}}},
                     .attrs = balance_attrs(11, score, 0, 1),
                     .tolerance = 1e-5});
  }
  add_token_exchanges(calls);
  return calls;
}

CaseOperand case_ids(Shape shape, double below) {
  return {.shape = std::move(shape), .fill = CaseOperand::Fill::ids, .dtype = DType::i32, .number = below};
}

void add_token_exchanges(std::vector<KernelCase>& calls) {
  for (const int64_t tokens : {int64_t{1}, int64_t{9}, int64_t{700}})
    calls.push_back(
        {.kernel = "place_tokens",
         .in = {case_ids({tokens, 2}, 6)},
         .out = {unwritten({3, tokens}, DType::i32), unwritten({3, tokens}, DType::i32), unwritten({3}, DType::i32)},
         .attrs = {{"experts_per_rank", int64_t{2}}, {"ranks", int64_t{3}}, {"rows", tokens}}});
  for (const int64_t width : {int64_t{3}, int64_t{6}, int64_t{16}}) {
    for (const DType dtype : {DType::f32, DType::bf16})
      calls.push_back({.kernel = "pack_tokens",
                       .in = {{.shape = {4, 5, width}, .dtype = dtype}, case_ids({3, 7}, 20)},
                       .out = {unwritten({3, 7, width}, dtype)}});
    calls.push_back({.kernel = "sum_tokens",
                     .in = {{.shape = {3, 7, width}}, case_ids({3, 20}, 7)},
                     .out = {unwritten({4, 5, width})},
                     .tolerance = 1e-6});
  }
  calls.push_back({.kernel = "pack_tokens",
                   .in = {case_ids({20, 3}, 50), case_ids({3, 7}, 20)},
                   .out = {unwritten({3, 7, 3}, DType::i32)}});
}

/// The router's nodes after the choice: weights, logits, ids. The bias is 0 and does not change what is computed.
void build_balance(LayerBuilder& layer, const std::vector<TensorId>& in, const Attrs& attrs) {
  const int64_t n = layer.shape(in[1]).back();
  const TensorId state = layer.state(kExpertLoadState, {LoadPlaces{n}.size()}, 3);
  const TensorId bias = layer.state(kBalanceBiasState, {n}, 0.5);
  layer.emit("balance_bias", {bias, state}, {{"speed", 0.25}}, "bias");
  const TensorId load = layer.emit("expert_load", {in[1], in[2]}, {{"score", attrs.text("score")}}, "load")[0];
  layer.emit("count_load", {load, state}, {}, "count");
  layer.emit("balance_losses", {in[0], in[1], load}, attrs);
}

void build_balance_by_sequence(LayerBuilder& layer, const std::vector<TensorId>& in, const Attrs& attrs) {
  const TensorId load = layer.emit("sequence_load", {in[2]}, {{"experts", layer.shape(in[1]).back()}}, "sequences")[0];
  layer.emit("balance_losses", {in[0], in[1], load}, attrs);
}

Attrs route_attrs(int64_t top_k, bool normalize = true, const char* score = "softmax", double scale = 1) {
  return {{"top_k", top_k}, {"score", std::string(score)}, {"normalize", normalize}, {"scale", scale}};
}
Attrs in_groups(Attrs attrs, int64_t groups, int64_t top_groups) {
  attrs.set("groups", groups);
  attrs.set("top_groups", top_groups);
  return attrs;
}

OpCase route_case(Shape logits, Attrs attrs) {
  Shape chosen = logits;
  chosen.back() = attrs.integer("top_k");
  OpCase row{"route", {{.shape = std::move(logits), .distinct = true}}, std::move(attrs), {chosen, chosen}};
  return row;
}

struct ExpertsCase {
  Shape tokens;
  int64_t features, experts, top_k, hidden;
  const char* activation = "swiglu";
  double capacity = 4;  // cases have few tokens, so their experts are far from balanced
};

/// A case of the op experts with these sizes.
OpCase experts_case(const ExpertsCase& of) {
  const int64_t parts = is_gated(expert_activation({{"function", std::string(of.activation)}})) ? 2 : 1;
  const int64_t block = of.hidden / blocks_of_hidden(of.hidden);
  Shape x = of.tokens, chosen = of.tokens, kept = of.tokens;
  x.push_back(of.features);
  chosen.push_back(of.top_k);
  const double per_block =
      of.capacity * static_cast<double>(of.top_k * parts * block) / static_cast<double>(of.experts);
  kept.insert(kept.end(), {of.experts, of.hidden / block, static_cast<int64_t>(std::ceil(per_block))});
  return {
      "experts",
      {{x},
       {chosen},
       ids(chosen, of.experts),
       {{of.experts, parts, of.hidden, of.features}},
       {{of.experts, of.features, of.hidden}}},
      {{"experts", of.experts}, {"function", std::string(of.activation)}, {"capacity", of.capacity}, {"block", block}},
      {x, kept},
      5e-6};
}

/// Clamped activations with values near the limit.
OpCase with_kinks(OpCase row) {
  row.has_kinks = true;
  return row;
}

OpCase with_biases(OpCase row) {
  const Shape up = row.inputs[3].shape;
  row.inputs.push_back({{up[0], up[1], up[2]}});
  row.inputs.push_back({{up[0], up[3]}});
  return row;
}

std::vector<OpCase> moe_rows() {
  std::vector<OpCase> rows;
  for (const bool normalize : {false, true}) {
    for (const char* score : {"softmax", "sigmoid"}) {
      rows.push_back(route_case({12, 8}, route_attrs(2, normalize, score)));
      rows.push_back(route_case({2, 6, 12}, in_groups(route_attrs(3, normalize, score, 2.5), 4, 2)));
    }
  }
  for (const char* score : {"softmax", "sigmoid"}) {
    OpCase biased = route_case({2, 6, 12}, in_groups(route_attrs(3, true, score), 4, 2));
    biased.inputs.push_back(fixed({12}));
    rows.push_back(biased);
    rows.push_back({"expert_load", {fixed({12, 8}), ids({12, 2}, 8)}, {{"score", std::string(score)}}, {{19}}});
    rows.push_back({"balance_losses",
                    {{{2, 6, 2}}, {{2, 6, 12}}, ids({2, 6, 2}, 12)},
                    balance_attrs(12, score, 0.5, 0.25),
                    {{2, 6, 2}},
                    2e-6,
                    build_balance,
                    false,
                    true});
    rows.push_back({"balance_losses",
                    {{{2, 6, 2}}, {{2, 6, 12}}, ids({2, 6, 2}, 12)},
                    by_sequence(balance_attrs(12, score, 0.5, 0, 6)),
                    {{2, 6, 2}},
                    2e-6,
                    build_balance_by_sequence,
                    false,
                    true});
  }
  rows.push_back({"sequence_load", {ids({4, 6, 2}, 5)}, {{"experts", int64_t{5}}}, {{4, 5}}});
  rows.push_back({"drop_pairs", {ids({4, 9, 2}, 5)}, {{"experts", int64_t{5}}, {"most", int64_t{3}}}, {{4, 9, 2}}});
  rows.push_back(
      {"drop_pairs", {ids({2, 200, 3}, 7)}, {{"experts", int64_t{7}}, {"most", int64_t{60}}}, {{2, 200, 3}}});
  rows.push_back(route_case({5, 1}, route_attrs(1)));
  rows.push_back(route_case({7, 61}, route_attrs(8)));
  rows.push_back(route_case({3, 7}, route_attrs(7)));
  for (const char* activation : {"swiglu", "geglu", "clamped_swiglu", "silu", "gelu", "relu"})
    rows.push_back(experts_case({{12}, 6, 4, 2, 8, activation}));
  rows.push_back(with_biases(experts_case({{12}, 6, 4, 2, 8, "clamped_swiglu"})));
  rows.push_back(with_kinks(experts_case({{12}, 96, 4, 2, 8, "clamped_swiglu"})));  // parts of u beyond the limit
  rows.push_back(with_biases(experts_case({{2, 12}, 5, 6, 3, 12})));
  rows.push_back(with_biases(experts_case({{4, 3}, 7, 12, 1, 6, "relu", 12})));
  rows.push_back(with_kinks(with_biases(experts_case({{2, 71}, 24, 3, 2, 40, "clamped_swiglu"}))));
  rows.push_back(experts_case({{1}, 1, 1, 1, 1}));
  rows.push_back(experts_case({{2, 12}, 5, 6, 3, 12}));
  rows.push_back(experts_case({{4, 3}, 7, 12, 1, 6, "relu", 12}));
  rows.push_back(experts_case({{90}, 3, 2, 1, 5}));              // more than one task of an expert
  rows.push_back(experts_case({{2, 71}, 24, 3, 2, 40}));         // whole and partial tiles of tensor cores
  rows.push_back(experts_case({{2, 7}, 5, 3, 2, 67}));           // hidden features that cannot be cut
  rows.push_back(experts_case({{5}, 3, 16, 2, 4, "silu", 16}));  // most experts receive nothing
  return rows;
}

const Attrs kRuleAttrs{
    {"experts", int64_t{4}}, {"function", std::string("swiglu")}, {"capacity", 1.0}, {"block", int64_t{1}}};
const std::vector<TensorInfo> kRuleInputs{
    {{2, 3, 5}}, {{2, 3, 2}}, {{2, 3, 2}, DType::i32}, {{4, 2, 8, 5}}, {{4, 5, 8}}};
std::vector<TensorInfo> rule_inputs_with_biases() {
  std::vector<TensorInfo> inputs = kRuleInputs;
  inputs.push_back({{4, 2, 8}});
  inputs.push_back({{4, 5}});
  return inputs;
}

}  // namespace

extern const OpCases moe_cases = {
    .rows = moe_rows(),
    .references = {{"route", route},
                   {"experts", experts},
                   {"expert_load", expert_load},
                   {"sequence_load", sequence_load},
                   {"count_load", [](const Inputs&, const Attrs&) { return Outputs{}; }},
                   {"balance_bias", [](const Inputs& in, const Attrs&) { return Outputs{in[0]}; }},
                   {"balance_losses", [](const Inputs& in, const Attrs&) { return Outputs{in[0]}; }},
                   {"drop_pairs", drop_pairs}},
    .rules = {{{"route", {{{2, 3, 6}}}, route_attrs(2)}, "abn->abk,abk", "nk", {{2, 3, 2}, {2, 3, 2}}},
              {{"route", {{{2, 3, 6}}, {{6}}}, route_attrs(2)}, "abn,q->abk,abk", "nkq", {{2, 3, 2}, {2, 3, 2}}},
              {{"expert_load", {{{2, 3, 6}}, {{2, 3, 2}, DType::i32}}}, "abn,abk->s", "nks", {{15}}},
              {{"sequence_load", {{{2, 3, 2}, DType::i32}}, {{"experts", int64_t{6}}}}, "abk->aq", "qk", {{2, 6}}},
              {{"count_load", {{{15}}, {{15}}}}, "s,t->", "st", {}},
              {{"balance_bias", {{{6}}, {{15}}}}, "q,s->q", "qs", {{6}}},
              {{"balance_losses", {{{2, 3, 2}}, {{2, 3, 6}}, {{15}}}}, "abk,abn,s->abk", "nks", {{2, 3, 2}}},
              {{"balance_losses", {{{2, 3, 2}}, {{2, 3, 6}}, {{2, 6}}}, {{"by_sequence", true}}},
               "abk,abn,aq->abk",
               "nkq",
               {{2, 3, 2}}},
              {{"drop_pairs", {{{2, 3, 2}, DType::i32}}, {{"experts", int64_t{6}}, {"most", int64_t{1}}}},
               "abk->abk",
               "bk",
               {{2, 3, 2}}},
              {{"experts", kRuleInputs, kRuleAttrs},
               "abd,abk,abk,ep(hi)d,eo(hi)->abo,abehq",
               "dkpioq",
               {{2, 3, 5}, {2, 3, 4, 8, 1}}},
              {{"experts", rule_inputs_with_biases(), kRuleAttrs},
               "abd,abk,abk,ep(hi)d,eo(hi),ep(hi),eo->abo,abehq",
               "dkpioq",
               {{2, 3, 5}, {2, 3, 4, 8, 1}}}},
    .gradients =
        {{{"route", {{{2, 3, 6}}}, route_attrs(2)},
          {"route_grad abk,abn,abk->abn sums k"},
          "each token is independent of the others; its experts are never cut",
          "kn"},
         {{"balance_losses", {{{2, 3, 2}}, {{2, 3, 6}}, {{15}}}, balance_attrs(6, "softmax", 1, 0)},
          {"pass in0", "balance_losses_grad abn,s->abn sums s"},
          "the gradient of a token needs the load of all tokens, which is reduced first, and nothing else of other "
          "tokens",
          "kns"},
         {{"experts", kRuleInputs, kRuleAttrs},
          {"experts_grad abo,abd,abk,abk,ep(hi)d,eo(hi),abehq->abd,abk,ep(hi)d,eo(hi) sums kephioq sums dephioq sums "
           "abkoq "
           "sums abdkpq"},
          "the gradients are linear in dy: a rank adds the terms of its own experts and hidden features to dx and "
          "dweights; the gradients of weights sum over tokens",
          "dkpioq"}},
    .shape_errors =
        {{{"route", {{{2, 3}}}, route_attrs(4)}, "route: top_k is 4, expected 1 to 3, the number of experts"},
         {{"route", {{{2, 6}}}, in_groups(route_attrs(2), 4, 2)}, "route: 6 experts are not divisible by 4 groups"},
         {{"route", {{{2, 6}}}, in_groups(route_attrs(3), 3, 1)}, "route: 1 of 3 groups have fewer than 3 experts"},
         {{"expert_load", {{{3, 6}}, {{3, 2}}}}, "expert_load expects i32 ids, but got [3, 2] f32"},
         {{"sequence_load", {{{3}, DType::i32}}, {{"experts", int64_t{6}}}},
          "sequence_load: the ids are [3] i32, expected [.., k]"},
         {{"balance_bias", {{{6}}, {{14}}}}, "balance_bias: the load is [14], expected [15]"},
         {{"balance_losses", {{{3, 2}}, {{4, 6}}}}, "balance_losses: the input of weights is [3, 2], expected [4, 2]"},
         {{"drop_pairs", {{{3, 2}, DType::i32}}, {{"experts", int64_t{6}}, {"most", int64_t{1}}}},
          "drop_pairs: the ids are [3, 2] i32, expected [batch, sequence, k]"},
         {{"experts", {{{3, 5}}, {{3, 2}}, {{3, 2}}, {{4, 2, 8, 5}}, {{4, 5, 8}}}, kRuleAttrs},
          "experts expects i32 ids, but got [3, 2] f32"},
         {{"experts", {{{3, 5}}, {{3, 2}}, {{3, 1}, DType::i32}, {{4, 2, 8, 5}}, {{4, 5, 8}}}, kRuleAttrs},
          "experts: the input of ids is [3, 1] i32, expected [3, 2]"},
         {{"experts", {{{3, 5}}, {{3, 2}}, {{3, 2}, DType::i32}, {{4, 2, 8, 6}}, {{4, 5, 8}}}, kRuleAttrs},
          "experts: the first weight is [4, 2, 8, 6], expected [experts, parts, hidden, 5]"},
         {{"experts", {{{3, 5}}, {{3, 2}}, {{3, 2}, DType::i32}, {{4, 2, 8, 5}}, {{4, 8, 5}}}, kRuleAttrs},
          "experts: the second weight is [4, 8, 5], expected [4, 5, 8]"},
         {{"experts",
           {{{3, 5}}, {{3, 2}}, {{3, 2}, DType::i32}, {{4, 2, 8, 5}}, {{4, 5, 8}}, {{4, 2, 8}}, {{4, 8}}},
           kRuleAttrs},
          "experts: the second bias is [4, 8], expected [4, 5]"}},
    .kernels = router_kernels(),
    .kernel_references = {{"balance_losses_grad", balance_grad},
                          {"place_tokens", place_tokens},
                          {"pack_tokens", pack_tokens},
                          {"sum_tokens", sum_tokens}},
    .layers = {{"moe", ", experts: 4, top_k: 2, hidden: 5", {8, 12}},
               {"moe",
                ", experts: 6, top_k: 2, hidden: 8, activation: relu, router: {score: sigmoid, normalize: false, "
                "groups: 3, top_groups: 2, balance: bias}",
                {8, 12}},
               {"moe",
                ", experts: 4, top_k: 2, hidden: 5, router: {balance: aux_loss, aux_loss: 0.1, z_loss: 0.01}",
                {8, 12}},
               {"moe",
                ", experts: 4, top_k: 2, hidden: 5, activation: clamped_swiglu, bias: true, router: {bias: true}",
                {8, 12}}},
};

}  // namespace trainctl
