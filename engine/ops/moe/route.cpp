// Chooses the experts of each token. logits [.., n](, bias [n]) -> weights [.., k], ids [.., k] i32, the largest score
// first; of equal scores the lower id first.
//   s = softmax(logits) or sigmoid(logits) over all experts; the k with the largest s (+ bias) are chosen
//   weights = scale * s of the chosen ones, with attr normalize divided by their sum
// With attr groups the experts form that many groups of neighbours, and only those of the top_groups best groups are
// candidates: a group counts as its largest score (softmax) or as the sum of its two largest (sigmoid), as in DeepSeek.
// The bias counts there too, but never in the weights, so no gradient flows to it.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

const int64_t kRoutedExperts = 64, kChosenExperts = 8;  // of an example

Shape chosen_shape(const Shape& logits, const Attrs& attrs) {
  Shape shape = logits;
  shape.back() = attrs.integer("top_k");
  return shape;
}

void expect_route_grad(Infos in) {
  using namespace example;
  expect(in.size() == 3, "it expects dweights [.., k], logits [.., n] and ids [.., k]");
  expect_shape(in[2], in[0].shape, "ids");
}

Attrs example_route() {
  return {{"top_k", kChosenExperts}, {"score", std::string("softmax")}, {"normalize", true}, {"scale", 1.0}};
}

}  // namespace

extern const OpDef route_op = {
    .name = "route",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("route", in, 1, 2);
      expect_floats("route", in.first(1));
      expect_ndim("route", in[0], 2);
      const int64_t experts = in[0].shape.back(), k = attrs.integer("top_k");
      const int64_t groups = attrs.integer("groups", 1), top_groups = attrs.integer("top_groups", groups);
      if (k < 1 || k > experts)
        shape_error(fmt::format("route: top_k is {}, expected 1 to {}, the number of experts", k, experts));
      if (groups < 1 || experts % groups != 0)
        shape_error(fmt::format("route: {} experts are not divisible by {} groups", experts, groups));
      if (top_groups < 1 || top_groups > groups || top_groups * (experts / groups) < k)
        shape_error(fmt::format("route: {} of {} groups have fewer than {} experts", top_groups, groups, k));
      if (in.size() > 1) expect_shape("route", "the bias", in[1], {experts});
      const Shape chosen = chosen_shape(in[0].shape, attrs);
      return {{chosen, in[0].dtype}, {chosen, DType::i32}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = letters(in[0].shape.size() - 1, "nkq");
      return {rows + (in.size() > 1 ? "n,q->" : "n->") + rows + "k," + rows + "k", in.size() > 1 ? "nkq" : "nk",
              "the router compares the scores of all experts of a token"};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "route_grad", {g.out_grad(), g.in(0), g.out(1)}, g.attrs());
        },
    .no_gradient = 0b10,
    .kernel = {.name = "route",
               .cost = reduction_cost<12>,
               .example =
                   [] {
                     return KernelExample{.what = "weights, ids of the chosen experts of each row of logits",
                                          .inputs = {{{example::kRows, kRoutedExperts}}},
                                          .attrs = example_route(),
                                          .optional = {{"groups", int64_t{1}}, {"top_groups", int64_t{1}}}};
                   }},
};

/// (dweights, logits, ids) -> dlogits
extern const OpDef route_grad_op = {
    .name = "route_grad",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("route_grad", in, 3, 3);
      return {in[1]};
    },
    .kernel = {.name = "route_grad",
               .cost = reduction_cost<12>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "dlogits; inputs dweights, logits, ids of the chosen experts",
                         .inputs = {{{kRows, kChosenExperts}}, {{kRows, kRoutedExperts}}, ids({kRows, kChosenExperts})},
                         .attrs = example_route(),
                         .below = [](Infos, const Attrs&) { return kRoutedExperts; },
                         .expect = expect_route_grad};
                   }},
};

}  // namespace trainctl
