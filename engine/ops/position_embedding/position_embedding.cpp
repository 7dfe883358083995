// y[.., t, d] = x[.., t, d] + table[t, d]: the row of each position. The table has a row for each of max_length
// positions, of which the first T are used. A third input changes the positions; those outside of the table take its
// first or last row:
//
//   documents [b, t]   row t is at position t - documents[b, t] of its document, which begins at row documents[b, t]
//   starts [b]         row t is at position starts[b] + t
// With attr row_order rows are not stored by position (row_order.h).
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/op_family.h"
#include "engine/ops/row_order.h"

namespace trainctl {

namespace {

/// Checks the third input, documents or starts.
void expect_positions(const char* op, const TensorInfo& x, const TensorInfo& places) {
  const bool are_starts = places.shape.size() == 1;
  if (x.shape.size() != 3 || places.dtype != DType::i32)
    shape_error(fmt::format("{}: with {}, {}, it expects i32 and [batch, rows, features], but got {}", op,
                            are_starts ? "first positions" : "documents", to_string(places), to_string(x)));
  expect_shape(op, are_starts ? "the input of first positions" : "the documents", places,
               are_starts ? Shape{x.shape[0]} : Shape{x.shape[0], x.shape[1]});
}

}  // namespace

extern const OpDef position_embedding_op = {
    .name = "position_embedding",
    .infer = [](Infos in, const Attrs&) -> std::vector<TensorInfo> {
      expect_inputs("position_embedding", in, 2, 3);
      expect_floats("position_embedding", in.first(2));
      expect_ndim("position_embedding", in[0], 2);
      const Shape &x = in[0].shape, &table = in[1].shape;
      if (table.size() != 2 || table[1] != x.back()) {
        shape_error(
            fmt::format("position_embedding: the table is {}, expected [max_length, {}]", to_string(in[1]), x.back()));
      }
      if (x[x.size() - 2] > table[0]) {
        shape_error(fmt::format("position_embedding: {} has {} positions, but max_length is {}", to_string(in[0]),
                                x[x.size() - 2], table[0]));
      }
      if (in.size() == 3) expect_positions("position_embedding", in[0], in[2]);
      return {in[0]};
    },
    .rule = [](Infos in, const Attrs&) -> RuleText {
      const std::string x = letters(in[0].shape.size() - 2, "tdp") + "td";
      const std::string places = in.size() == 3 ? "," + x.substr(0, in[2].shape.size()) : "";
      return {x + ",pd" + places + "->" + x, "p",
              "each rank adds the rows of its own positions, so it needs all rows of the table"};
    },
    .backward =
        [](GradBuilder& g) {
          g.pass_in_grad(0, g.out_grad());
          std::vector<TensorId> inputs = {g.out_grad()};
          if (g.num_inputs() == 3) inputs.push_back(g.in(2));
          Attrs attrs{{"max_length", g.shape(g.in(1))[0]}};
          if (g.attrs().has(kRowOrder)) attrs.set(kRowOrder, g.attrs().integer(kRowOrder));
          g.set_in_grad(1, "position_embedding_grad", std::move(inputs), std::move(attrs));
        },
    // The cost counts only the rows of the table whose positions occur.
    .kernel = {.name = "position_embedding",
               .in_place = InPlace::first_on_first,
               .cost =
                   [](Infos in, Infos out, const Attrs&) {
                     Cost cost = traffic_cost(in.first(1), out, 1);
                     const Shape& x = in[0].shape;
                     cost.bytes += static_cast<double>(x[x.size() - 2] * x.back() * byte_size(in[1].dtype));
                     return cost;
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x + table[position]; inputs x [.., t, d], table",
                                          .inputs = {{{8, 512, kCols}}, {{kCols, kCols}}},
                                          .optional = {{kRowOrder, int64_t{4}}, {kRowGroups, int64_t{2}}}};
                   }},
    .in_generation = InGeneration::reads_starts,
};

/// dy, and documents if there are any -> dtable; rows of positions that do not occur are 0.
extern const OpDef position_embedding_grad_op = {
    .name = "position_embedding_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("position_embedding_grad", in, 1, 2);
      expect_ndim("position_embedding_grad", in[0], 2);
      if (in.size() == 2) expect_positions("position_embedding_grad", in[0], in[1]);
      const Shape& dy = in[0].shape;
      if (dy[dy.size() - 2] > attrs.integer("max_length")) {
        shape_error(fmt::format("position_embedding_grad: {} has more positions than max_length {}", to_string(in[0]),
                                attrs.integer("max_length")));
      }
      return {{{attrs.integer("max_length"), dy.back()}}};
    },
    .kernel = {.name = "position_embedding_grad",
               .accumulates = 1,
               .cost = reduction_cost<1>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dtable; input dy [.., t, d]",
                                          .inputs = {{{8, 512, kCols}}},
                                          .attrs = {{"max_length", kCols}},
                                          .optional = {{kRowOrder, int64_t{4}}, {kRowGroups, int64_t{2}}}};
                   }},
};

extern const LayerDef position_embedding_layer = {
    .name = "position_embedding",
    .doc =
        "Adds a trained vector to each position (the second-to-last dim). An optional second input, documents (i32), "
        "gives for each row the index of the first row of its document; positions are counted from that row.",
    .fields = {integer("max_length", "Number of rows of the table, one per position.")
                   .required()
                   .at_least(1)
                   .at_most(kMaxSize),
               share_field(), init_field()},
    .max_inputs = 2,
    .emit =
        [](LayerContext& layer) {
          if (layer.shape().size() < 2) {
            shape_error(fmt::format("position_embedding needs an input [.., positions, features], but got {}",
                                    to_string(layer.shape())));
          }
          layer.sample_dim(-2);
          const Shape table{layer.attrs.integer("max_length"), layer.shape().back()};
          std::vector<TensorId> inputs = {layer.inputs[0], layer.weight(table, {Init::Kind::normal, 1.0})};
          if (layer.inputs.size() == 2) inputs.push_back(layer.inputs[1]);
          Attrs attrs;
          if (layer.row_order > 1) attrs.set(kRowOrder, int64_t{layer.row_order});
          return layer.builder.emit("position_embedding", std::move(inputs), std::move(attrs))[0];
        },
};

extern const OpFamily position_embedding_family = {.ops = {&position_embedding_op, &position_embedding_grad_op},
                                                   .layers = {&position_embedding_layer},
                                                   .profile_part = "embeddings"};

}  // namespace trainctl
