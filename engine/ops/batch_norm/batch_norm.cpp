// y = (x - mean) / sqrt(var + eps) (* gamma + beta), per channel (attr dim: 1, or the last of [n, h, w, c]), over the
// whole batch.
// The statistics are separate ops: if the batch is cut they are partial sums, and the planner sees their all_reduce.
// count = elements of a channel in the whole tensor.
// Memory traffic of the compiled op, in elements per element of x, with relu, if ranks do not share the batch:
//   forward   x | x, (residual), y            3, or 4 with a residual: 12 or 16 bytes in f32, half of that in bf16
//   backward  dy, x | dy, x, dx               5: 20 bytes in f32; behind a residual relu_grad writes the gradient that
//                                             the other branch reads too (dy, y, g), so 8: 32 bytes
// Ranks that share a batch exchange the means and variances of their own rows in one call, and merge them.
#include <fmt/format.h>

#include "engine/graph/per_rank.h"
#include "engine/ops/batch_norm/shared_statistics.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

size_t normalized_dim(const Attrs& attrs) { return static_cast<size_t>(attrs.integer("dim", 1)); }

/// "ncab"; the letters of the other dims, n first, keep their order.
std::string x_letters(const TensorInfo& x, const Attrs& attrs) {
  std::string text = "n" + letters(x.shape.size() - 2, "nc");
  return text.insert(normalized_dim(attrs), "c");
}

/// Expects x and between `low` and `high` inputs in all; those after x are vectors over its channels. Returns their
/// number.
int64_t expect_channels(std::string_view op, Infos in, const Attrs& attrs, size_t low, size_t high) {
  expect_inputs(op, in, low, high);
  for (const TensorInfo& input : in) expect_floats(op, {&input, 1});  // statistics are f32 regardless of x's type
  expect_ndim(op, in[0], 2);
  if (normalized_dim(attrs) >= in[0].shape.size()) {
    shape_error(fmt::format("{}: dim {} is not a dim of {}", op, attrs.integer("dim", 1), to_string(in[0])));
  }
  const int64_t channels = in[0].shape[normalized_dim(attrs)];
  for (size_t i = 1; i < in.size(); ++i) expect_shape(op, "a vector of the channels", in[i], {channels});
  return channels;
}

/// The variant of the op for images stored channels last: it normalizes over dim 3 instead of dim 1. The first kFirst
/// inputs (x, or dy and x) and the outputs of mask kOutputs are images.
template <unsigned kFirst, unsigned kOutputs>
std::optional<ChannelsLast> channels_last(Infos in, const Attrs& attrs) {
  if (in[0].shape.size() != 4 || normalized_dim(attrs) != 1) return {};
  ChannelsLast form{attrs, (1u << kFirst) - 1, kOutputs};
  form.attrs.set("dim", int64_t{3});
  return form;
}

/// The weights' gradients are the same two sums that dx needs.
void batch_norm_backward(GradBuilder& g) {
  const Attrs attrs = g.attrs();
  const std::vector<TensorId> inputs = {g.out_grad(), g.in(0), g.in(1), g.in(2)};
  const bool affine = g.num_inputs() == 5;
  const auto sums = affine ? g.set_in_grads({4, 3}, "batch_norm_grad_stats", inputs, attrs)
                           : g.emit("batch_norm_grad_stats", inputs, attrs, {g.in(1), g.in(1)}, "grad_stats");
  std::vector<TensorId> all = inputs;
  all.insert(all.end(), sums.begin(), sums.end());
  if (affine) all.push_back(g.in(3));
  g.set_in_grad(0, "batch_norm_grad", all, attrs);
}

// A batch of 32 images of 128 channels, 32 x 32.
const Shape kNormalizedImages = {32, 128, 32, 32}, kNormalizedChannels = {128};
const Attrs kBatchNorm = {{"dim", int64_t{1}}, {"eps", 1e-5}, {"momentum", 0.1}, {"count", int64_t{32 * 32 * 32}}};

/// (dy, x, mean, var, ...): dy is like x, the others are vectors over the channels.
void expect_gradient(std::string_view op, Infos in, const Attrs& attrs, size_t low, size_t high) {
  expect_inputs(op, in, low, high);
  expect_shape(op, "dy", in[0], in[1].shape);
  expect_channels(op, in.subspan(1), attrs, low - 1, high - 1);
}

/// The nodes of the layer: mean, var, running (the update of the running statistics) and the normalization.
TensorId emit_batch_norm(LayerContext& layer) {
  LayerBuilder& b = layer.builder;
  const Shape in = layer.shape();
  if (in.size() < 2)
    shape_error(fmt::format("batch_norm needs an input [batch, features, ..], but got {}", to_string(in)));
  const int64_t dim = layer.non_negative_dim(layer.attrs.integer("dim"));
  const int64_t features = in[dim], count = num_elements(in) / features;
  if (count < 2)
    shape_error(
        fmt::format("batch_norm needs at least 2 values per feature in a micro-batch, but its input {} has 1, so its "
                    "output would be constant; increase dataset.batch, or reduce parallel.micro_batches",
                    to_string(in)));
  const TensorId x = layer.inputs[0];
  Attrs statistics = {{"count", count}, {"dim", dim}}, running = {{"count", count}};
  if (!layer.attrs.flag("sync", true)) {
    statistics.set(kPerRank, true);
    running = statistics;
  }
  running.set("momentum", layer.attrs.number("momentum"));
  const TensorId mean = b.emit("batch_norm_mean", {x}, statistics, "mean")[0];
  const TensorId var = b.emit("batch_norm_var", {x, mean}, statistics, "var")[0];
  const TensorId running_mean = b.state("running_mean", {features}, 0),
                 running_var = b.state("running_var", {features}, 1);
  b.emit("batch_norm_running", {mean, var, running_mean, running_var}, running, "running");
  Attrs normalize = statistics;
  normalize.set("eps", layer.attrs.number("eps"));
  return b.emit("batch_norm", layer.with_affine({x, mean, var}, {features}), normalize)[0];
}

}  // namespace

extern const OpDef batch_norm_var_op;

/// x -> sum / count; a partial sum if the batch is cut
extern const OpDef batch_norm_mean_op = {
    .name = "batch_norm_mean",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      return {{{expect_channels("batch_norm_mean", in, attrs, 1, 1)}}};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText { return {x_letters(in[0], attrs) + "->c"}; },
    .kernel = {.name = "batch_norm_mean",
               .next = &batch_norm_var_op.kernel,
               .with_next = &batch_norm_mean_var_kernel,
               .channels_last = channels_last<1, 0>,
               .cost = reduction_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "mean of each channel, dim 1 or attr dim",
                                          .inputs = {{kNormalizedImages}},
                                          .attrs = kBatchNorm};
                   }},
};

/// (x, mean) -> sum (x - mean)^2 / count
extern const OpDef batch_norm_var_op = {
    .name = "batch_norm_var",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      return {{{expect_channels("batch_norm_var", in, attrs, 2, 2)}}};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText { return {x_letters(in[0], attrs) + ",c->c"}; },
    .kernel = {.name = "batch_norm_var",
               .channels_last = channels_last<1, 0>,
               .cost = reduction_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "variance of each channel; inputs x, mean",
                                          .inputs = {{kNormalizedImages}, f32(kNormalizedChannels)},
                                          .attrs = kBatchNorm};
                   }},
};

/// x -> mean, var of a whole batch
extern const KernelDef batch_norm_mean_var_kernel = {
    .name = "batch_norm_mean_var",
    .channels_last = channels_last<1, 0>,
    .cost = reduction_cost<5>,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "mean and variance of each channel in one pass, dim 1 or attr dim",
                               .inputs = {{kNormalizedImages}},
                               .attrs = kBatchNorm,
                               .outputs = [](Infos in, const Attrs& attrs, DType) -> std::vector<TensorInfo> {
                                 const int64_t channels = expect_channels("batch_norm_mean_var", in, attrs, 1, 1);
                                 return {{{channels}}, {{channels}}};
                               }};
        },
};

/// [parts, 2, c] -> mean, var: mean = sum mean_i / parts, var = sum (var_i + (mean_i - mean)^2) / parts
extern const KernelDef batch_norm_merge_kernel = {
    .name = "batch_norm_merge",
    .cost = reduction_cost<3>,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "mean and variance of each channel of a batch; input: those of its equal parts",
              .inputs = {f32({4, 2, 128})},
              .outputs = [](Infos in, const Attrs&, DType) -> std::vector<TensorInfo> {
                expect_inputs("batch_norm_merge", in, 1, 1);
                const Shape& parts = in[0].shape;
                if (parts.size() != 3 || parts[1] != 2)
                  shape_error("batch_norm_merge expects [parts, 2, channels], but got " + to_string(in[0]));
                return {{{parts[2]}}, {{parts[2]}}};
              }};
        },
};

/// (mean, var, running_mean, running_var): running += momentum * (new - running), var unbiased
extern const OpDef batch_norm_running_op = {
    .name = "batch_norm_running",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      infer_elementwise("batch_norm_running", in, 4);
      return {};
    },
    .rule = [](Infos, const Attrs&) -> RuleText { return {"c,c,c,c->"}; },
    .kernel = {.name = "batch_norm_running",
               .updates_input = 0b1100,
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "running statistics; inputs mean, var, running mean, running var",
                                          .inputs = {f32(kNormalizedChannels), f32(kNormalizedChannels),
                                                     f32(kNormalizedChannels), f32(kNormalizedChannels)},
                                          .attrs = kBatchNorm};
                   }},
    .in_evaluation = InEvaluation::reads_state,
};

/// (x, mean, var[, gamma, beta]) -> y
extern const OpDef batch_norm_op = {
    .name = "batch_norm",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_channels("batch_norm", in, attrs, 3, 5);
      return {in[0]};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string x = x_letters(in[0], attrs);
      std::string text = x;
      for (size_t i = 1; i < in.size(); ++i) text += ",c";
      return {text + "->" + x};
    },
    .backward = batch_norm_backward,
    .kernel = {.name = "batch_norm",
               .takes = bits(EpilogueStep::residual, EpilogueStep::relu),
               .channels_last = channels_last<1, 1>,
               .cost = elementwise_cost<4>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs x, mean, var(, gamma, beta)",
                                          .inputs = {{kNormalizedImages},
                                                     f32(kNormalizedChannels),
                                                     f32(kNormalizedChannels),
                                                     {kNormalizedChannels},
                                                     {kNormalizedChannels}},
                                          .attrs = kBatchNorm};
                   }},
};

/// (dy, x, mean, var) -> dbeta = sum dy, dgamma = sum dy * xhat
extern const OpDef batch_norm_grad_stats_op = {
    .name = "batch_norm_grad_stats",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_gradient("batch_norm_grad_stats", in, attrs, 4, 4);
      return {in[2], in[2]};
    },
    .kernel = {.name = "batch_norm_grad_stats",
               .inputs_behind_relu = 4,
               .channels_last = channels_last<2, 0>,
               .cost = reduction_cost<3>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dbeta, dgamma; inputs dy, x, mean, var",
                                          .inputs = {{kNormalizedImages},
                                                     {kNormalizedImages},
                                                     f32(kNormalizedChannels),
                                                     f32(kNormalizedChannels)},
                                          .attrs = kBatchNorm};
                   }},
};

/// (dy, x, mean, var, dbeta, dgamma[, gamma]) -> dx, including the gradient through the statistics
extern const OpDef batch_norm_grad_op = {
    .name = "batch_norm_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_gradient("batch_norm_grad", in, attrs, 6, 7);
      return {in[1]};
    },
    .kernel = {.name = "batch_norm_grad",
               .inputs_behind_relu = 6,
               .channels_last = channels_last<2, 1>,
               .cost = elementwise_cost<8>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dx; inputs dy, x, mean, var, dbeta, dgamma(, gamma)",
                                          .inputs = {{kNormalizedImages},
                                                     {kNormalizedImages},
                                                     f32(kNormalizedChannels),
                                                     f32(kNormalizedChannels),
                                                     f32(kNormalizedChannels),
                                                     f32(kNormalizedChannels),
                                                     {kNormalizedChannels}},
                                          .attrs = kBatchNorm};
                   }},
};

extern const LayerDef batch_norm_layer = {
    .name = "batch_norm",
    .doc =
        "Normalizes each feature over the rows of a micro-batch, across all ranks that share it unless `sync` is "
        "false.",
    .fields = {integer("dim", "The feature dim; -1 is the last.").defaults(int64_t{1}), eps_field(),
               number("momentum", "Weight of the new statistics in the running statistics.")
                   .defaults(0.1)
                   .at_least(0)
                   .at_most(1),
               flag("sync", true,
                    "Compute the statistics over the rows of all ranks. false: each rank normalizes over its own rows, "
                    "as PyTorch's BatchNorm does under DDP, so the results depend on the number of ranks that share a "
                    "batch; the running statistics are averaged over these ranks after each step."),
               affine_field(), scale_init_field(), shift_init_field()},
    .emit = emit_batch_norm,
};

extern const OpFamily batch_norm_family = {.ops = {&batch_norm_mean_op, &batch_norm_var_op, &batch_norm_running_op,
                                                   &batch_norm_op, &batch_norm_grad_stats_op, &batch_norm_grad_op},
                                           .kernels = {&batch_norm_mean_var_kernel, &batch_norm_merge_kernel},
                                           .layers = {&batch_norm_layer},
                                           .profile_part = "norms"};

}  // namespace trainctl
