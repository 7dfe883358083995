// y = x with its dims in the order of attr perm: dim i of y is dim perm[i] of x.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// True if the n numbers of `perm` are 0 to n - 1 in some order.
bool is_permutation(Ints perm) {
  std::sort(perm.begin(), perm.end());
  bool each_once = true;
  for (size_t i = 0; i < perm.size(); ++i) each_once = each_once && perm[i] == static_cast<int64_t>(i);
  return each_once;
}

std::vector<FieldFault> perm_faults(const Attrs& attrs) {
  const Ints perm = attrs.ints("perm");
  if (is_permutation(perm)) return {};
  return {{"perm", format_list(perm) + " is not a permutation of the dims 0 to n-1", ""}};
}

void expect_permutation(const Ints& perm, const TensorInfo& input) {
  if (perm.size() == input.shape.size() && is_permutation(perm)) return;
  shape_error(fmt::format("transpose: perm {} must contain each of the {} dims of {} exactly once", format_list(perm),
                          input.shape.size(), to_string(input)));
}

/// A transpose between images [n, c, h, w] and [n, h, w, c] copies images that are stored channels last as they are.
std::optional<ChannelsLast> transposed_images(Infos in, const Attrs& attrs) {
  const Ints to_last{0, 2, 3, 1}, from_last{0, 3, 1, 2}, perm = attrs.ints("perm");
  if (in[0].shape.size() != 4 || (perm != to_last && perm != from_last)) return {};
  return ChannelsLast{{{"perm", Ints{0, 1, 2, 3}}}, perm == to_last ? 1u : 0u, perm == to_last ? 0u : 1u};
}

}  // namespace

extern const OpDef transpose_op = {
    .name = "transpose",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("transpose", in, 1, 1);
      const Ints perm = attrs.ints("perm");
      expect_permutation(perm, in[0]);
      TensorInfo out{{}, in[0].dtype};
      for (int64_t dim : perm) out.shape.push_back(in[0].shape[dim]);
      return {out};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string dims = letters(in[0].shape.size());
      std::string out;
      for (int64_t dim : attrs.ints("perm")) out += dims.at(dim);
      return {dims + "->" + out};
    },
    .backward =
        [](GradBuilder& g) {
          const Ints perm = g.attrs().ints("perm");
          Ints inverse(perm.size());
          for (size_t i = 0; i < perm.size(); ++i) inverse[perm[i]] = static_cast<int64_t>(i);
          g.set_in_grad(0, "transpose", {g.out_grad()}, {{"perm", inverse}});
        },
    .kernel = {.name = "transpose",
               .channels_last = transposed_images,
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x with its dims in the order of perm",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"perm", Ints{1, 0}}}};
                   }},
};

extern const LayerDef transpose_layer = {
    .name = "transpose",
    .doc = "Permutes the dims.",
    .fields = {ints("perm", "The new order of all dims; dim 0 is the batch.").required().at_least(0).at_most(kMaxDims)},
    .faults = perm_faults,
    .emit = [](LayerContext& layer) { return layer.emit("transpose", layer.attrs); },
};

extern const OpFamily transpose_family = {.ops = {&transpose_op}, .layers = {&transpose_layer}};

}  // namespace trainctl
