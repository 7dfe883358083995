// Implements the kernels that exchange tokens between ranks: their shapes, costs and operands.
#include "engine/ops/moe/token_exchange.h"

#include <fmt/format.h>

#include "engine/ops/examples.h"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef experts_op, experts_grad_op;

namespace {

const int64_t kExchangedTokens = 4096, kExchangedRows = 2048, kExchangingRanks = 8, kIdsOfToken = 2,
              kExpertsPerRank = 8, kExchangedFeatures = 1024;

std::vector<TensorInfo> placed(Infos in, const Attrs& attrs, DType) {
  const int64_t ranks = attrs.integer("ranks"), rows = attrs.integer("rows"),
                experts_per_rank = attrs.integer("experts_per_rank");
  example::expect(
      in[0].dtype == DType::i32 && !in[0].shape.empty() && ranks > 0 && rows > 0 && experts_per_rank > 0,
      fmt::format("ids {} for {} ranks with {} experts each", to_string(in[0].shape), ranks, experts_per_rank));
  const int64_t tokens = num_elements(in[0].shape) / std::max<int64_t>(1, in[0].shape.back());
  return {{{ranks, rows}, DType::i32}, {{ranks, tokens}, DType::i32}, {{ranks}, DType::i32}};
}

std::vector<TensorInfo> packed(Infos in, const Attrs&, DType) {
  example::expect(in[1].shape.size() == 2, "the rows are [ranks, rows]");
  return {{{in[1].shape[0], in[1].shape[1], in[0].shape.back()}, in[0].dtype}};
}

std::vector<TensorInfo> summed(Infos in, const Attrs&, DType) {
  example::expect(in[0].shape.size() == 3 && in[1].shape.size() == 2 && in[0].shape[0] == in[1].shape[0],
                  "the blocks are [ranks, rows, features], the places [ranks, tokens]");
  return {{{in[1].shape[1], in[0].shape.back()}, in[0].dtype}};
}

}  // namespace

std::optional<ExpertOperands> expert_operands(const Node& node) {
  if (node.op == experts_op.name) return ExpertOperands{0};
  if (node.op == experts_grad_op.name) return ExpertOperands{1};
  return std::nullopt;
}

extern const KernelDef place_tokens_kernel = {
    .name = "place_tokens",
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "rows of tokens in the blocks for the ranks of their experts; input ids",
              .inputs = {ids({kExchangedTokens, kIdsOfToken})},
              .attrs = {{"experts_per_rank", kExpertsPerRank}, {"ranks", kExchangingRanks}, {"rows", kExchangedTokens}},
              .outputs = placed,
              .below = [](Infos, const Attrs& attrs) {
                return attrs.integer("experts_per_rank") * attrs.integer("ranks");
              }};
        },
};

extern const KernelDef pack_tokens_kernel = {
    .name = "pack_tokens",
    .cost = [](Infos in, Infos out,
               const Attrs&) { return Cost{.bytes = 2.0 * static_cast<double>(bytes_of(out[0]) + bytes_of(in[1]))}; },
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "blocks of rows; inputs tokens, the token of each row",
              .inputs = {{{kExchangedTokens, kExchangedFeatures}}, ids({kExchangingRanks, kExchangedRows})},
              .outputs = packed,
              .below = [](Infos in, const Attrs&) { return num_elements(example::leading(in[0])); }};
        },
};

extern const KernelDef sum_tokens_kernel = {
    .name = "sum_tokens",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "sums of the rows of tokens; inputs blocks, the row of each token",
                               .inputs = {{{kExchangingRanks, kExchangedRows, kExchangedFeatures}},
                                          ids({kExchangingRanks, kExchangedTokens})},
                               .outputs = summed,
                               .below = [](Infos in, const Attrs&) { return in[0].shape[1]; }};
        },
};

}  // namespace trainctl
