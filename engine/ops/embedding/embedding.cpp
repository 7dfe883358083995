// y[.., d] = table[ids[..], d]. A rank that holds some rows of the table returns 0 for the others, so the rows are
// a contraction: y is a partial sum if they are cut.
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/embedding/table_layer.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

int64_t rows_of_second(Infos in, const Attrs&) { return in[1].shape[0]; }
int64_t vocabulary(Infos, const Attrs& attrs) { return attrs.integer("vocab"); }

void expect_embedding_grad(Infos in) {
  example::expect(in.size() == 2, "it expects dy [.., d] and ids");
  example::expect_shape(in[1], example::leading(in[0]), "ids");
}

/// Scratch memory in bytes: the sorted tokens with their counts, the start of each row of the table among them, and
/// sums of rows over windows of 512 tokens.
int64_t grad_scratch(const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
  const int64_t tokens = num_elements(inputs[1]);
  const int64_t ints = 5 * tokens + outputs[0][0] + 1025, floats = 2 * (tokens / 512 + 1) * outputs[0][1];
  return std::max(kSumsScratch, 4 * (ints + floats));
}

}  // namespace

extern const OpDef embedding_op = {
    .name = "embedding",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("embedding", in, 2, 2);
      if (in[0].dtype != DType::i32) {
        shape_error(fmt::format("embedding expects i32 ids, but got {} f32", to_string(in[0])));
      }
      if (in[1].shape.size() != 2) {
        shape_error(fmt::format("embedding needs a table [vocab, units], but got {}", to_string(in[1])));
      }
      TensorInfo out{in[0].shape, in[1].dtype};
      out.shape.push_back(in[1].shape[1]);
      return {out};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string ids = letters(in[0].shape.size(), "vd");
      return {ids + ",vd->" + ids + "d"};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(1, "embedding_grad", {g.out_grad(), g.in(0)}, {{"vocab", g.shape(g.in(1))[0]}});
        },
    // The cost counts only the rows of the table that are looked up.
    .kernel = {.name = "embedding",
               .cost =
                   [](Infos in, Infos out, const Attrs&) {
                     Cost cost = traffic_cost(in.first(1), out, 0);
                     cost.bytes += static_cast<double>(num_elements(out[0].shape) * byte_size(in[1].dtype));
                     return cost;
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = rows of a table; inputs ids, table",
                                          .inputs = {ids({kRows}), {{32768, kCols}}},
                                          .below = rows_of_second};
                   }},
};

/// (dy, ids) -> dtable; a rank accumulates only the rows of its own slice.
extern const OpDef embedding_grad_op = {
    .name = "embedding_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("embedding_grad", in, 2, 2);
      expect_ndim("embedding_grad", in[0], 1);
      return {{{attrs.integer("vocab"), in[0].shape.back()}}};
    },
    .kernel = {.name = "embedding_grad",
               .accumulates = 1,
               .cost = reduction_cost<1>,
               .most_cuda_scratch = grad_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dtable; inputs dy, ids",
                                          .inputs = {{kMatrix}, ids({kRows})},
                                          .attrs = {{"vocab", int64_t{32768}}},
                                          .below = vocabulary,
                                          .expect = expect_embedding_grad};
                   }},
};

extern const LayerDef embedding_layer = {
    .name = "embedding",
    .doc = "Looks up rows of a trained table by integer ids.",
    .fields =
        {integer("vocab", "Vocabulary size: the number of rows of the table.").required().at_least(1).at_most(kMaxSize),
         units_field().required(), share_field(), init_field(),
         integer(kCachedBatches,
                 "With parallel.tables, the number of additional batches for which a worker reuses a row before it "
                 "pulls the row again.")
             .defaults(int64_t{0})
             .at_least(0)
             .at_most(kMostCachedBatches),
         integer(kAdmitAfter,
                 "With parallel.tables, the number of updates of a row after which it is stored; until then, it has "
                 "its initial values.")
             .defaults(int64_t{1})
             .at_least(1)
             .at_most(kMostSightings),
         integer(kExpireAfter,
                 "With parallel.tables, the number of consecutive updates of a server that do not include a row after "
                 "which the row is dropped and has its initial values again. 0: rows are never dropped.")
             .defaults(int64_t{0})
             .at_least(0)
             .at_most(kMaxSize)},
    .emit =
        [](LayerContext& layer) {
          const Shape shape{layer.attrs.integer("vocab"), layer.attrs.integer("units")};
          const TensorId table = layer.weight(shape, {Init::Kind::normal, 1.0});
          return layer.builder.emit("embedding", {layer.inputs[0], table})[0];
        },
};

std::string_view table_rows_field(const LayerDef& layer) { return &layer == &embedding_layer ? "vocab" : ""; }

extern const OpFamily embedding_family = {
    .ops = {&embedding_op, &embedding_grad_op}, .layers = {&embedding_layer}, .profile_part = "embeddings"};

}  // namespace trainctl
