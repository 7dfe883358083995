// The experts of a mixture: y[t] = sum over j of weights[t, j] * down_e act(up_e x[t]) with e = ids[t, j].
//   x [.., d], weights [.., k], ids [.., k], up [experts, parts, hidden, d], down [experts, d, hidden] -> y [.., d],
//   kept
// Gated activations have two parts: act(part 0) * part 1; clamped_swiglu is that of gpt-oss (experts_size.h). With
// biases, up_bias [experts, parts, hidden] and down_bias [experts, d] are two more inputs. `kept` has the rows of
// `up`'s products for the backward pass, ordered by expert: its elements belong to (token, expert) pairs that only this
// kernel and its gradient know. Its size is attr capacity times the mean number of pairs of a rank, whatever the cut; a
// rank that receives more stops the run.
//
// Experts are cut like any other factor: a rank computes the terms of its own experts, so y is a partial sum, as it is
// if the hidden features are cut; then the rank with the first of them adds down_bias. Tokens are cut like the rows of
// a product.
#include <fmt/format.h>

#include <cmath>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/moe/experts_size.h"
#include "engine/ops/moe/token_exchange.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// The number of elements of `kept` for one token, one expert and one block of hidden features.
int64_t kept_per_block(const Shape& ids, const Shape& up, const Attrs& attrs) {
  const int64_t block = attrs.integer("block");
  const double pairs = attrs.number("capacity") * static_cast<double>(ids.back());
  return static_cast<int64_t>(
      std::ceil(pairs * static_cast<double>(up[1] * block) / static_cast<double>(attrs.integer("experts"))));
}

Shape kept_shape(Infos in, const Attrs& attrs) {
  Shape shape = example::leading(in[0]);
  const Shape& up = in[3].shape;
  shape.insert(shape.end(), {up[0], up[2] / attrs.integer("block"), kept_per_block(in[2].shape, up, attrs)});
  return shape;
}

/// Two products for each pair of a token and an expert; a rank with a part of the experts has that part of the pairs.
Cost experts_cost(Infos operands_in, Infos in, Infos out, const Attrs& attrs, double products) {
  const Shape &ids = in[2].shape, &up = in[3].shape;
  const double pairs = attrs.has(kExpectedPairs) ? static_cast<double>(attrs.integer(kExpectedPairs))
                                                 : static_cast<double>(num_elements(ids)) * static_cast<double>(up[0]) /
                                                       static_cast<double>(attrs.integer("experts"));
  Cost cost = traffic_cost(operands_in, out, 0);
  cost.flops = products * 2 * pairs * static_cast<double>((up[1] + 1) * up[2] * up[3]);
  return cost;
}

/// The first product of each expert, if its rows fill the memory of `kept`; the other products are as large.
WrittenMatrices written_by_experts(const Shape& up, const Shape& kept) {
  const int64_t inner = up[1] * up[2], experts = std::max<int64_t>(1, up[0]);
  return {experts, num_elements(kept) / std::max<int64_t>(1, experts * inner), inner};
}

bool has_biases(Infos in) { return in.size() == 7; }

void expect_experts_grad(Infos in) {
  using namespace example;
  expect(in.size() == 7 || in.size() == 8,
         "it expects dy, x, weights, ids, up, down, the kept rows, and with biases down_bias");
  expect_shape(in[0], in[1].shape, "dy");
}

const int64_t kExampleExperts = 8, kExampleTokens = 512, kExampleFeatures = 256, kExampleHidden = 512, kExampleTopK = 2;
const Shape kExampleUp = {kExampleExperts, 2, kExampleHidden, kExampleFeatures},
            kExampleDown = {kExampleExperts, kExampleFeatures, kExampleHidden};

Attrs example_experts() {
  return {{"experts", kExampleExperts},
          {"function", std::string("swiglu")},
          {"capacity", 1.0},
          {"block", kExampleHidden / blocks_of_hidden(kExampleHidden)}};
}
int64_t number_of_experts(Infos, const Attrs& attrs) { return attrs.integer("experts"); }

}  // namespace

extern const OpDef experts_op = {
    .name = "experts",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("experts", in, 5, 7);
      if (in.size() == 6) shape_error("experts expects both biases or none");
      expect_floats("experts", in.first(2));
      expect_floats("experts", in.subspan(3));
      expect_ndim("experts", in[0], 2);
      const Shape &x = in[0].shape, &up = in[3].shape;
      if (in[2].dtype != DType::i32)
        shape_error(fmt::format("experts expects i32 ids, but got {} f32", to_string(in[2])));
      expect_shape("experts", "the input of ids", in[2], in[1].shape);
      if (up.size() != 4 || up[3] != x.back())
        shape_error(fmt::format("experts: the first weight is {}, expected [experts, parts, hidden, {}]",
                                to_string(in[3]), x.back()));
      expect_shape("experts", "the second weight", in[4], {up[0], up[3], up[2]});
      if (has_biases(in)) {
        expect_shape("experts", "the first bias", in[5], {up[0], up[1], up[2]});
        expect_shape("experts", "the second bias", in[6], {up[0], up[3]});
      }
      return {in[0], {kept_shape(in, attrs), in[0].dtype}};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string rows = letters(in[0].shape.size() - 1, "dkephioq");
      const int64_t hidden = in[3].shape[2], block = attrs.integer("block");
      const char* const biases = has_biases(in) ? ",ep(hi),eo" : "";
      return {.text = fmt::format("{0}d,{0}k,{0}k,ep(hi)d,eo(hi){1}->{0}o,{0}ehq", rows, biases),
              .uncuttable = "dkpioq",
              .why_not = "experts read and write whole tokens; cut the batch, the experts or their hidden features",
              .sizes = {{'h', hidden / block}},
              .why_size = fmt::format("the {} hidden features of an expert are cut in blocks of {}", hidden, block)};
    },
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs = {g.out_grad(), g.in(0), g.in(1), g.in(2), g.in(3), g.in(4), g.out(1)};
          if (g.num_inputs() == 5) return (void)g.set_in_grads({0, 1, 3, 4}, "experts_grad", inputs, g.attrs());
          inputs.push_back(g.in(6));
          g.set_in_grads({0, 1, 3, 4, 5, 6}, "experts_grad", inputs, g.attrs());
        },
    .kernel = {.name = "experts",
               .private_outputs = 2,
               .has_products = true,
               .cost = [](Infos in, Infos out, const Attrs& attrs) { return experts_cost(in, in, out, attrs, 1); },
               .written = [](Infos in, Infos out) { return written_by_experts(in[3].shape, out[1].shape); },
               .most_cuda_scratch =
                   [](const std::vector<Shape>& in, const std::vector<Shape>& out) {
                     return experts_scratch(ExpertsSize::of(in[2], in[3], out[1]), false);
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what =
                                              "y, rows kept for the gradient; inputs x, weights, ids, up, down(, "
                                              "biases)",
                                          .inputs = {{{kExampleTokens, kExampleFeatures}},
                                                     {{kExampleTokens, kExampleTopK}},
                                                     ids({kExampleTokens, kExampleTopK}),
                                                     {kExampleUp},
                                                     {kExampleDown}},
                                          .attrs = example_experts(),
                                          .optional = {{kExpectedPairs, int64_t{1}}},
                                          .below = number_of_experts};
                   }},
};

/// (dy, x, weights, ids, up, down, kept(, down_bias)) -> dx, dweights, dup, ddown(, dup_bias, ddown_bias)
extern const OpDef experts_grad_op = {
    .name = "experts_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("experts_grad", in, 7, 8);
      const Shape& up = in[4].shape;
      if (in.size() == 7) return {in[1], in[2], {up}, {in[5].shape}};
      return {in[1], in[2], {up}, {in[5].shape}, {{up[0], up[1], up[2]}}, {in[7].shape}};
    },
    .kernel = {
        .name = "experts_grad",
        .accumulates = 0b111100,
        .has_products = true,
        .cost = [](Infos in, Infos out, const Attrs& attrs) { return experts_cost(in, in.subspan(1), out, attrs, 2); },
        .written = [](Infos in, Infos) { return written_by_experts(in[4].shape, in[6].shape); },
        .most_cuda_scratch =
            [](const std::vector<Shape>& in, const std::vector<Shape>&) {
              return experts_scratch(ExpertsSize::of(in[3], in[4], in[6]), true);
            },
        .example =
            [] {
              using namespace example;
              const int64_t blocks = blocks_of_hidden(kExampleHidden);
              const int64_t per_block = kExampleTopK * 2 * (kExampleHidden / blocks) / kExampleExperts;
              return KernelExample{.what = "dx, dweights, dup, ddown; inputs dy, x, weights, ids, up, down, kept rows",
                                   .inputs = {{{kExampleTokens, kExampleFeatures}},
                                              {{kExampleTokens, kExampleFeatures}},
                                              {{kExampleTokens, kExampleTopK}},
                                              ids({kExampleTokens, kExampleTopK}),
                                              {kExampleUp},
                                              {kExampleDown},
                                              {{kExampleTokens, kExampleExperts, blocks, per_block}}},
                                   .attrs = example_experts(),
                                   .optional = {{kExpectedPairs, int64_t{1}}},
                                   .below = number_of_experts,
                                   .expect = expect_experts_grad};
            }},
};

}  // namespace trainctl
