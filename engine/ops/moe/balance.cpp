// Keeps the experts of a mixture equally loaded, and counts their loads. n experts, k per token, T tokens of the
// micro-batch, p the probabilities of a token (expert_load.h), f_e the share of tokens that choose expert e, P_e the
// mean of p_e. All sums are over the whole micro-batch, whatever the plan: they are partial sums if tokens are cut.
//
//   auxiliary loss    coefficient * n * sum over e of f_e P_e            as in Hugging Face, so k if loads are equal
//     by sequence     the mean over sequences of the same, with f_e / k  as in DeepSeek-V2, so 1 if loads are equal
//   z-loss            z_loss * mean over tokens of (log of the sum of e^logit)^2
//   bias              added to the scores when experts are chosen; b_e += speed * sign(mean load - load of e), once per
//                     step, without a gradient (DeepSeek-V3)
//
// The losses are not added to the loss that a run reports. `balance` passes the router's weights on, and its backward
// adds the gradients of the losses to that of the logits.
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

const int64_t kBalancedExperts = 64, kBalancedChosen = 8;  // of an example
constexpr const char* kWholeRouter = "the router compares the scores of all experts of a token";

std::string rows_of_tokens(const TensorInfo& tokens) { return letters(tokens.shape.size() - 1, "nksq"); }

void expect_ids(const char* op, const TensorInfo& ids) {
  if (ids.dtype != DType::i32) shape_error(fmt::format("{} expects i32 ids, but got {} f32", op, to_string(ids)));
  if (ids.shape.size() < 2) shape_error(fmt::format("{}: the ids are {}, expected [.., k]", op, to_string(ids)));
}

int64_t experts_of_attrs(Infos, const Attrs& attrs) { return attrs.integer("experts"); }

Attrs example_balance() {
  return {{"top_k", kBalancedChosen}, {"score", std::string("softmax")},
          {"rows", example::kRows},   {"of_load", example::kRows},
          {"coefficient", 0.01},      {"z_loss", 0.001}};
}

/// (.., logits, load): a load of each sequence has the first dim of the tokens.
void expect_load(const char* op, const TensorInfo& logits, const TensorInfo& load, const Attrs& attrs) {
  const int64_t experts = logits.shape.back();
  const Shape expected =
      attrs.flag("by_sequence") ? Shape{logits.shape[0], experts} : Shape{LoadPlaces{experts}.size()};
  expect_shape(op, "the load", load, expected);
}

}  // namespace

/// (logits [.., n], ids [.., k](, ids without dropped pairs)) -> load (expert_load.h)
extern const OpDef expert_load_op = {
    .name = "expert_load",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("expert_load", in, 2, 3);
      expect_floats("expert_load", in.first(1));
      for (const TensorInfo& ids : in.subspan(1)) expect_ids("expert_load", ids);
      Shape chosen = in[1].shape;
      chosen.back() = in[0].shape.back();
      expect_shape("expert_load", "the input of logits", in[0], chosen);
      if (in.size() > 2) expect_shape("expert_load", "the input of kept ids", in[2], in[1].shape);
      return {{{LoadPlaces{in[0].shape.back()}.size()}}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = rows_of_tokens(in[0]);
      const std::string kept = in.size() > 2 ? "," + rows + "k" : "";
      return {rows + "n," + rows + "k" + kept + "->s", "nks", kWholeRouter};
    },
    .kernel = {.name = "expert_load",
               .cost = reduction_cost<12>,
               .most_cuda_scratch =
                   [](const std::vector<Shape>& in, const std::vector<Shape>&) {
                     return 3 * 4 * num_elements(in[0]) / std::max<int64_t>(1, in[0].back());
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "load of the experts; inputs logits, ids of the chosen experts",
                                          .inputs = {{{kRows, kBalancedExperts}}, ids({kRows, kBalancedChosen})},
                                          .below = [](Infos, const Attrs&) { return kBalancedExperts; }};
                   }},
};

/// ids [b, .., k] -> chosen pairs of each expert [b, n], for attr experts
extern const OpDef sequence_load_op = {
    .name = "sequence_load",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("sequence_load", in, 1, 1);
      expect_ids("sequence_load", in[0]);
      return {{{in[0].shape[0], attrs.integer("experts")}}};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = rows_of_tokens(in[0]);
      return {rows + "k->" + rows.substr(0, 1) + "q", "qk", kWholeRouter};
    },
    .kernel = {.name = "sequence_load",
               .cost = reduction_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "load of the experts by each sequence; input ids of the chosen experts",
                         .inputs = {ids({32, 128, kBalancedChosen})},
                         .attrs = {{"experts", kBalancedExperts}},
                         .below = experts_of_attrs};
                   }},
};

/// (load of a micro-batch, state): the state is the sum of the loads of the step.
extern const OpDef count_load_op = {
    .name = "count_load",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      infer_elementwise("count_load", in, 2);
      return {};
    },
    .rule = [](Infos, const Attrs&) -> RuleText {
      return {"s,t->", "st", kWholeRouter};
    },
    .kernel = {.name = "count_load",
               .updates_input = 0b10,
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "adds a load to that of the step; inputs load, state",
                                          .inputs = {f32({2 * kBalancedExperts + 3}), f32({2 * kBalancedExperts + 3})}};
                   }},
    .in_evaluation = InEvaluation::reads_state,
};

/// (bias [n], load of the step before) -> the bias of this step. The first micro-batch of a step updates the bias, so
/// all forward and backward passes of the step choose experts with the same bias.
extern const OpDef balance_bias_op = {
    .name = "balance_bias",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("balance_bias", in, 2, 2);
      expect_shape("balance_bias", "the load", in[1], {LoadPlaces{in[0].shape.back()}.size()});
      return {in[0]};
    },
    .rule = [](Infos, const Attrs&) -> RuleText {
      return {"q,s->q", "qs", kWholeRouter};
    },
    .kernel = {.name = "balance_bias",
               .updates_input = 0b01,
               .cost = elementwise_cost<2>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "moves the bias of each expert towards the mean load; inputs bias, load",
                         .inputs = {f32({kBalancedExperts}), f32({2 * kBalancedExperts + 3})},
                         .attrs = {{"speed", 0.001}}};
                   }},
    .in_evaluation = InEvaluation::passes_on,
};

/// (weights [.., k], logits [.., n](, load)) -> weights. The load: of `expert_load`, or with attr by_sequence that of
/// `sequence_load`.
extern const OpDef balance_op = {
    .name = "balance_losses",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("balance_losses", in, 2, 3);
      expect_floats("balance_losses", in.first(2));
      Shape chosen = in[1].shape;
      chosen.back() = in[0].shape.back();
      expect_shape("balance_losses", "the input of weights", in[0], chosen);
      if (in.size() > 2) expect_load("balance_losses", in[1], in[2], attrs);
      return {in[0]};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string rows = rows_of_tokens(in[0]);
      std::string load, letters_of_load;
      if (in.size() > 2) {
        letters_of_load = attrs.flag("by_sequence") ? "q" : "s";
        load = "," + (attrs.flag("by_sequence") ? rows.substr(0, 1) : "") + letters_of_load;
      }
      return {rows + "k," + rows + "n" + load + "->" + rows + "k", "nk" + letters_of_load, kWholeRouter};
    },
    .backward =
        [](GradBuilder& g) {
          g.pass_in_grad(0, g.out_grad());
          std::vector<TensorId> inputs = {g.in(1)};
          if (g.num_inputs() > 2) inputs.push_back(g.in(2));
          g.set_in_grad(1, "balance_losses_grad", inputs, g.attrs());
        },
    .no_gradient = 0b100,
    .kernel = {.name = "balance_losses",
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "the weights; its gradient is that of losses for balance",
                                          .inputs = {{{kRows, kBalancedChosen}}, {{kRows, kBalancedExperts}}},
                                          .attrs = example_balance(),
                                          .optional = {{"by_sequence", true}}};
                   }},
    .in_evaluation = InEvaluation::passes_on,
};

/// (logits(, load)) -> dlogits of the losses
extern const OpDef balance_grad_op = {
    .name = "balance_losses_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("balance_losses_grad", in, 1, 2);
      if (in.size() > 1) expect_load("balance_losses_grad", in[0], in[1], attrs);
      return {in[0]};
    },
    .kernel = {.name = "balance_losses_grad",
               .cost = elementwise_cost<12>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dlogits of the losses for balance; inputs logits, load",
                                          .inputs = {{{kRows, kBalancedExperts}}, f32({2 * kBalancedExperts + 3})},
                                          .attrs = example_balance(),
                                          .optional = {{"by_sequence", true}}};
                   }},
};

/// ids [b, .., k] -> ids with -1 for dropped pairs: an expert keeps the first `most` pairs of each sequence.
extern const OpDef drop_pairs_op = {
    .name = "drop_pairs",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("drop_pairs", in, 1, 1);
      expect_ids("drop_pairs", in[0]);
      if (in[0].shape.size() < 3)
        shape_error(fmt::format("drop_pairs: the ids are {}, expected [batch, sequence, k]", to_string(in[0])));
      if (attrs.integer("most") < 1) shape_error("drop_pairs: an expert must keep at least 1 pair of a sequence");
      return {in[0]};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string rows = rows_of_tokens(in[0]);
      return {rows + "k->" + rows + "k", rows.substr(1) + "k",
              "with drop: true a token's position in its whole sequence decides whether an expert takes it; cut the "
              "batch instead"};
    },
    .kernel = {.name = "drop_pairs",
               .cost = reduction_cost<2>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "ids, -1 for pairs above the capacity of their expert",
                                          .inputs = {ids({32, 128, kBalancedChosen})},
                                          .attrs = {{"experts", kBalancedExperts}, {"most", int64_t{32}}},
                                          .below = experts_of_attrs};
                   }},
};

/// Turns the sums of a load into the means and ratios that are reported.
ExpertReport expert_report(const std::vector<float>& load, int64_t top_k) {
  const LoadPlaces at = load_places(static_cast<int64_t>(load.size()));
  const auto value = [&](int64_t i) { return static_cast<double>(load[static_cast<size_t>(i)]); };
  ExpertReport report;
  double pairs = 0, product = 0, most = 0, least = 0;
  for (int64_t e = 0; e < at.experts; ++e) {
    pairs += value(e);
    product += value(e) * value(at.probability(e));
    most = e == 0 ? value(e) : std::max(most, value(e));
    least = e == 0 ? value(e) : std::min(least, value(e));
  }
  if (pairs <= 0 || top_k < 1) return report;
  const double mean = pairs / static_cast<double>(at.experts), tokens = pairs / static_cast<double>(top_k);
  report.max_load = most / mean;
  report.min_load = least / mean;
  report.entropy = value(at.entropy()) / tokens;
  report.balance = static_cast<double>(at.experts) * product / (tokens * tokens * static_cast<double>(top_k));
  report.dropped = value(at.dropped()) / pairs;
  return report;
}

}  // namespace trainctl
