// The bias of attention's scores (score_terms.h) in the rule of attention, and the op of its gradient: (dy, the inputs
// of attention without the sinks, out, logs) -> [its dims], the sum of weight * (dy . v - dy . out) over all samples,
// heads and rows that a place of the bias counts for.
#include <fmt/format.h>

#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// Position of the bias among the inputs: after dy, before out and logs.
const TensorInfo& bias_of_grad(Infos in) { return in[in.size() - 3]; }

void expect_score_bias_grad(Infos in) {
  using namespace example;
  expect(in.size() >= 5 && in.size() <= 8,
         "it expects dy, the inputs of attention with a bias of the scores, its output and the logs of the rows");
  expect_shape(in[in.size() - 2], in[0].shape, "the output");
}

/// Two products for each score: q . k and dy . v.
Cost score_bias_grad_cost(Infos in, Infos out, const Attrs& attrs) {
  Cost cost = traffic_cost(in, out, 0);
  const Shape& logs = in.back().shape;  // [b, g, r, t]
  const double scores = static_cast<double>(num_elements(logs)) * static_cast<double>(bias_of_grad(in).shape.back());
  const auto features = static_cast<double>(attrs.integer("head_dim") + in[0].shape[2] / (logs[1] * logs[2]));
  cost.flops = scores * (2.0 * features + 40.0);
  cost.exponentials = scores;
  return cost;
}

/// A number for each row.
int64_t score_bias_scratch(const std::vector<Shape>& inputs, const std::vector<Shape>&) {
  return num_elements(inputs.back()) * 4;
}

}  // namespace

void add_score_bias(RuleText& rule, const TensorInfo& bias, const Attrs& attrs, bool keeps_all_heads) {
  const std::string dims = attrs.text(kScoreBias);
  std::string text = ",";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (bias.shape[i] == 1)
      text += "()";
    else if (dims[i] == 'h')
      text += keeps_all_heads ? "h" : "(gr)";
    else
      text += dims[i] == 'b' ? 'b' : dims[i] == 'r' ? 'p' : 'k';
  }
  rule.text.insert(rule.text.find("->"), text);
  for (const char letter : {'p', 'k', 'h'})
    if (text.find(letter) != std::string::npos) rule.uncuttable += letter;
}

void expect_score_bias(const TensorInfo& bias, const Attrs& attrs, const BiasDims& sizes) {
  const std::string dims = attrs.text(kScoreBias);
  const BiasDims found = BiasDims::of(bias.shape, dims);
  const auto fits = [](int64_t size, int64_t whole) { return size == 1 || size == whole; };
  const bool has_dims = bias.shape.size() == dims.size() && dims.size() >= 2 && dims.ends_with("rk");
  if (has_dims && bias.dtype != DType::i32 && fits(found.b, sizes.b) && fits(found.h, sizes.h) &&
      fits(found.r, sizes.r) && found.k == sizes.k)
    return;
  Shape expected;
  for (const char dim : dims)
    expected.push_back(dim == 'b' ? sizes.b : dim == 'h' ? sizes.h : dim == 'r' ? sizes.r : sizes.k);
  shape_error(fmt::format("attention: the bias of the scores is {}, expected {}, or 1 in place of any but the last",
                          to_string(bias), to_string(expected)));
}

extern const OpDef attention_score_bias_grad_op = {
    .name = "attention_score_bias_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("attention_score_bias_grad", in, 5, 8);
      const TensorInfo& bias = bias_of_grad(in);
      return {{bias.shape, attrs.flag(kBiasIsActivation) ? bias.dtype : DType::f32}};
    },
    .kernel = {.name = "attention_score_bias_grad",
               .accumulates = 1,
               .cost = score_bias_grad_cost,
               .most_cuda_scratch = score_bias_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what =
                             "gradient of the bias of scores; inputs dy, the inputs of attention, its output and "
                             "logs",
                         .inputs = {{{4, 1024, 768}},
                                    {{4, 1024, 2304}},
                                    {{12, 1024, 1024}},
                                    {{4, 1024, 768}},
                                    f32({4, 12, 1, 1024})},
                         .attrs = {{"head_dim", int64_t{64}},
                                   {"group", int64_t{1}},
                                   {"causal", true},
                                   {"scale", 0.125},
                                   {kScoreBias, std::string("hrk")}},
                         .optional = {{kAlibi, true},
                                      {kScoreDropout, 0.1},
                                      {kScoreDropoutKey, int64_t{1}},
                                      {"batch", Ints{4, 0, 1}},
                                      {"packing", std::string("heads")},
                                      {"window", int64_t{256}},
                                      {"softcap", 50.0},
                                      {"mask", std::string("documents")},
                                      {kBiasIsActivation, true},
                                      {kExchangesKeys, true}},
                         .expect = expect_score_bias_grad};
                   }},
};

}  // namespace trainctl
