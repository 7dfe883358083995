// Rotates pairs of features by an angle that grows with the row: in row p, pair i of a head with d rotated features by
// p * base^(-2i / d), or by an angle with a scaling of rotary_angles.h. The pairs are i and i + d/2 (Llama), or 2i and
// 2i + 1 (attr interleaved, GPT-J). Attr rotary_dim: only the first d features of a head are rotated.
//   x [b, t, (units, heads, head_dim)] -> y; the first attr `rotated` heads of each unit are rotated, the others copied
// With a second input, documents [b, t], p is the row's position in its document, which begins at row documents[b,
// row]. With attr positions: N, the second input is starts [b]: the position of row t is starts[b] + t, and less than
// N. With attr row_order rows are not stored by position (row_order.h). The gradient is the inverse rotation of dy.
#include <fmt/format.h>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/rotary/rotary_shape.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

Attrs inverse_of(Attrs attrs) {
  attrs.set("inverse", !attrs.flag("inverse"));
  return attrs;
}

bool reads_starts(const Attrs& attrs) { return attrs.integer("positions", 0) > 0; }

/// Checks the second input, documents or starts.
void expect_places(Infos in, const Attrs& attrs) {
  const Shape& x = in[0].shape;
  const char* const what = reads_starts(attrs) ? "the input of first positions" : "the documents";
  expect_shape("rotary", what, in[1], reads_starts(attrs) ? Shape{x[0]} : Shape{x[0], x[1]});
  if (in[1].dtype != DType::i32) shape_error(fmt::format("rotary: {} are {}, expected i32", what, to_string(in[1])));
}

/// The heads of an input, as the layer attention has them.
struct Units {
  int64_t count = 1;  ///< number of units, the part of a row that can be sharded
  int64_t heads = 1, rotated = 1;
};

Units units_of(const Attrs& attrs) {
  const int64_t heads = attrs.integer("heads"), kv_heads = attrs.integer("kv_heads", heads), group = heads / kv_heads;
  const std::string packing = attrs.text("packing");
  if (packing == "heads") return {kv_heads, group + 2, group + 1};
  if (packing == "qkv") return {1, heads + 2 * kv_heads, heads + kv_heads};
  return {heads, 1, 1};
}

std::vector<FieldFault> faults(const Attrs& attrs) {
  const int64_t heads = attrs.integer("heads", 1), kv_heads = attrs.integer("kv_heads", heads);
  if (attrs.has("kv_heads") && attrs.text("packing", "none") == "none")
    return {{"kv_heads", "kv_heads requires an input that packs q, k and v", "set packing, or remove kv_heads"}};
  if (kv_heads >= 1 && heads % kv_heads != 0)
    return {{"kv_heads", fmt::format("{} query heads are not divisible by {} kv heads", heads, kv_heads), ""}};
  if (attrs.integer("rotary_dim", 2) % 2 != 0)
    return {{"rotary_dim", "rotary_dim must be even, because pairs of features are rotated", ""}};
  return rotary_scaling_faults(attrs);
}

}  // namespace

extern const OpDef rotary_op = {
    .name = "rotary",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("rotary", in, 1, 2);
      expect_floats("rotary", in.first(1));
      if (in[0].shape.size() != 3)
        shape_error(fmt::format("rotary expects [batch, rows, features], but got {}", to_string(in[0])));
      const int64_t d = attrs.integer("head_dim"), heads = attrs.integer("heads", 1);
      if (d < 2 || d % 2 != 0) shape_error(fmt::format("rotary needs an even number of features per head, not {}", d));
      if (d > 2 * kMostRotaryPairs)
        shape_error(fmt::format("rotary: the heads have {} features, expected at most {}", d, 2 * kMostRotaryPairs));
      const int64_t turned = attrs.integer("rotary_dim", d);
      if (turned < 2 || turned % 2 != 0 || turned > d)
        shape_error(fmt::format(
            "rotary: rotary_dim is {}, expected an even number of at most {}, the features per head", turned, d));
      const int64_t offset = attrs.integer("rotary_offset", 0);
      if (offset < 0 || offset > d - turned)
        throw ShapeError(fmt::format("rotary: features {} to {} are to be rotated, but a head has {}", offset,
                                     offset + turned - 1, d),
                         "rotary_offset");
      if (heads < 1 || in[0].shape[2] % (heads * d) != 0)
        shape_error(
            fmt::format("rotary: the last dim of {} is not a multiple of {} heads of {}", to_string(in[0]), heads, d));
      if (in.size() == 2) expect_places(in, attrs);
      return {in[0]};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const int64_t together = attrs.integer("heads", 1) * attrs.integer("head_dim"), g = in[0].shape[2] / together;
      const std::string places = in.size() == 1 ? "" : reads_starts(attrs) ? ",b" : ",bt";
      return {.text = "bt(gd)" + places + "->bt(gd)",
              .uncuttable = "d",
              .why_not =
                  "rotary needs whole heads on one rank, and for a packed input the heads that attention needs "
                  "together",
              .sizes = {{'g', g}, {'d', together}},
              .why_size =
                  fmt::format("only whole heads (or groups of packed heads) can be cut, and their number is {}", g)};
    },
    .backward =
        [](GradBuilder& g) {
          std::vector<TensorId> inputs = {g.out_grad()};
          if (g.num_inputs() == 2) inputs.push_back(g.in(1));
          g.set_in_grad(0, "rotary", std::move(inputs), inverse_of(g.attrs()));
        },
    .kernel = {.name = "rotary",
               .in_place = InPlace::first_on_first,
               .cost = elementwise_cost<3>,
               .example =
                   [] {
                     return KernelExample{.what = "pairs of features, rotated by the position of the row",
                                          .inputs = {{{4, 1024, 1024}}},
                                          .attrs = {{"head_dim", int64_t{64}}, {"base", 10000.0}},
                                          .optional = {{"heads", int64_t{3}},
                                                       {"rotated", int64_t{2}},
                                                       {"rotary_dim", int64_t{32}},
                                                       {"rotary_offset", int64_t{32}},
                                                       {"interleaved", true},
                                                       {"positions", int64_t{2048}},
                                                       {"inverse", true},
                                                       {kRowOrder, int64_t{4}},
                                                       {kRowGroups, int64_t{2}}}};
                   }},
    .in_generation = InGeneration::reads_starts,
};

namespace {

std::vector<Field> rotary_fields() {
  std::vector<Field> fields = {
      integer("heads", "Number of heads. For a packed input, the number of query heads.")
          .required()
          .at_least(1)
          .at_most(kMaxSize),
      integer("kv_heads", "Number of key and value heads of a packed input. If omitted, the same as heads.")
          .at_least(1)
          .at_most(kMaxSize),
      text("packing", "Layout of a packed input: heads or qkv, as for attention. v is not rotated.")
          .one_of({"none", "heads", "qkv"})
          .defaults(std::string("none")),
      number("base", "Base of the rotation angles.").defaults(10000.0).above(0),
      text("pairs",
           "How features are paired. half: i and i + d/2, as in Llama; interleaved: 2i and 2i + 1, as in GPT-J.")
          .one_of({"half", "interleaved"})
          .defaults(std::string("half")),
      integer("rotary_dim", "Number of features of each head that are rotated. If omitted, all.")
          .at_least(2)
          .at_most(kMaxSize),
      integer("rotary_offset", "With rotary_dim, the index of the first rotated feature of each head.")
          .defaults(int64_t{0})
          .at_least(0)
          .at_most(kMaxSize)};
  for (Field& field : rotary_scaling_fields()) fields.push_back(std::move(field));
  return fields;
}

}  // namespace

extern const LayerDef rotary_layer = {
    .name = "rotary",
    .doc =
        "Rotary position embedding (RoPE): rotates pairs of features of each head by the position of the row. A second "
        "input, documents, has the index of the first row of each row's document (i32); positions count from there.",
    .fields = rotary_fields(),
    .max_inputs = 2,
    .faults = faults,
    .emit =
        [](LayerContext& layer) {
          const Shape shape = layer.shape();
          const Units units = units_of(layer.attrs);
          if (shape.size() != 3)
            shape_error(fmt::format("rotary expects [batch, rows, features], but got {}", to_string(shape)));
          if (shape[2] % (units.count * units.heads) != 0)
            throw ShapeError(fmt::format("rotary: the {} features of {} cannot be divided into {} heads of the same "
                                         "size",
                                         shape[2], to_string(shape), units.count * units.heads),
                             "heads");
          const int64_t head_dim = shape[2] / (units.count * units.heads);
          Attrs attrs{{"head_dim", head_dim},
                      {"heads", units.heads},
                      {"rotated", units.rotated},
                      {"base", layer.attrs.number("base")},
                      {"interleaved", layer.attrs.text("pairs") == "interleaved"}};
          const int64_t rotary_dim = layer.attrs.integer("rotary_dim", head_dim);
          if (rotary_dim != head_dim) attrs.set("rotary_dim", rotary_dim);
          if (layer.row_order > 1) attrs.set(kRowOrder, int64_t{layer.row_order});
          if (const int64_t offset = layer.attrs.integer("rotary_offset"); offset != 0)
            attrs.set("rotary_offset", offset);
          for (const auto& [name, value] : rotary_scaling_attrs(layer.attrs, rotary_dim, shape[1]))
            attrs.set(name, value);
          return layer.emit("rotary", std::move(attrs));
        },
};

extern const OpFamily rotary_family = {.ops = {&rotary_op}, .layers = {&rotary_layer}};

}  // namespace trainctl
