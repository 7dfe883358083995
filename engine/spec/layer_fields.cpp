// The field table of layers and transforms: adding a layer type is adding its row here and its
// lowering in engine/model.
#include <algorithm>

#include "engine/base/text.h"
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

Field make(std::string name, FieldKind kind, std::string doc) {
  Field f;
  f.name = std::move(name);
  f.kind = kind;
  f.doc = std::move(doc);
  return f;
}
Field flag(std::string name, bool fallback, std::string doc) {
  return make(std::move(name), FieldKind::flag, std::move(doc)).defaults(fallback);
}
Field integer(std::string name, std::string doc) { return make(std::move(name), FieldKind::integer, std::move(doc)); }
Field number(std::string name, std::string doc) { return make(std::move(name), FieldKind::number, std::move(doc)); }
Field ints(std::string name, std::string doc) { return make(std::move(name), FieldKind::ints, std::move(doc)); }
Field text(std::string name, std::string doc) { return make(std::move(name), FieldKind::text, std::move(doc)); }

Field units() { return integer("units", "Features that come out.").at_least(1).at_most(kMaxSize); }
Field init_std() {
  return number("init_std", "Initial weights are normal with this deviation; else as in PyTorch.").above(0);
}
Field share() { return text("share", "A layer whose weight is used instead of an own one."); }
Field eps() { return number("eps", "Keeps the division finite.").defaults(1e-5).above(0); }
Field affine() { return flag("affine", true, "Learn a scale and a shift."); }
std::vector<Field> reduction() {
  return {ints("dims", "Dims to sum over; negative ones count from the last.").required(),
          flag("keep_dims", false, "Leave them in, with size 1.")};
}
Field group() {
  return make("group", FieldKind::int_lists, "Lists of ranks of the stage, each rank in one; all ranks where left out.")
      .at_least(0);
}

std::vector<EntryType> make_layer_types() {
  return {
      {"flatten", "All dims but the batch become one.", {}},
      {"reshape",
       "A new shape for the same numbers.",
       {ints("shape", "Of one sample, without the batch dim; one -1 is worked out.")
            .required()
            .at_least(-1)
            .at_most(kMaxSize)}},
      {"transpose",
       "Dims in another order.",
       {ints("perm", "All dims, 0 is the batch.").required().at_least(0).at_most(kMaxDims)}},
      {"dense",
       "x w^T + b, with a weight of [units, features].",
       {units().required(), flag("bias", true, "Add a bias."), share(), init_std()}},
      {"matmul",
       "x w with an own weight of [features, units], or the product of two inputs.",
       {units(), flag("transpose_a", false, "Swap the last two dims of the first input."),
        flag("transpose_b", false, "Swap the last two dims of the second."), init_std()},
       1,
       2},
      {"add", "Sum of two inputs, broadcast as in numpy.", {}, 2, 2},
      {"mul", "Product of two inputs, element by element, broadcast as in numpy.", {}, 2, 2},
      {"relu", "max(x, 0).", {}},
      {"sigmoid", "1 / (1 + exp(-x)).", {}},
      {"tanh", "Hyperbolic tangent.", {}},
      {"gelu",
       "x times the normal distribution function.",
       {text("approximate", "tanh: the usual approximation.").one_of({"none", "tanh"}).defaults(std::string("none"))}},
      {"softmax", "exp(x) / sum exp(x).", {integer("dim", "The dim that adds up to 1.").defaults(int64_t{-1})}},
      {"dropout",
       "Zeroes elements at random while training.",
       {number("p", "Share of elements that become 0.").defaults(0.5).at_least(0).below(1)}},
      {"batch_norm",
       "Normalises each feature (dim 1) over the batch, over all ranks that share it.",
       {eps(),
        number("momentum", "Share of the new statistics in the running ones.").defaults(0.1).at_least(0).at_most(1),
        affine()}},
      {"layer_norm", "Normalises the last dim.", {eps(), affine()}},
      {"embedding",
       "Rows of a table, chosen by integers.",
       {integer("vocab", "Rows of the table.").required().at_least(1).at_most(kMaxSize), units().required(), share(),
        init_std()}},
      {"reduce_sum", "Sum over dims.", reduction()},
      {"reduce_mean", "Mean over dims.", reduction()},
      {"all_reduce", "Sum over the ranks of the group.", {group()}, 1, 1, true},
      {"all_gather", "The group's parts one after another along dim 0.", {group()}, 1, 1, true},
      {"reduce_scatter", "Sum over the group; each rank keeps its part of dim 0.", {group()}, 1, 1, true},
      {"all_to_all",
       "Cuts one dim over the group and joins the parts along another.",
       {integer("split_dim", "The dim that is cut.").required(),
        integer("concat_dim", "The dim that grows.").required(), group()},
       1,
       1,
       true},
      {"broadcast",
       "The root's numbers on every rank of the group.",
       {group(), integer("root", "Index of the sender in its group.").defaults(int64_t{0}).at_least(0)},
       1,
       1,
       true},
  };
}

std::vector<EntryType> make_transform_types() {
  return {
      {"resize",
       "Bilinear, to {resize: [height, width]}.",
       {ints("size", "Height and width.").required().items(2).at_least(1).at_most(kMaxSize)}},
      {"rescale",
       "x * scale + shift.",
       {number("scale", "Factor.").defaults(1.0), number("shift", "Added after it.").defaults(0.0)}},
      {"normalize",
       "(x - mean) / std, a value a channel.",
       {make("mean", FieldKind::numbers, "Mean of each channel.").required(),
        make("std", FieldKind::numbers, "Deviation of each channel.").required().above(0)}},
      {"hwc2chw", "Channels first.", {}},
      {"type_cast", "{type_cast: f32} or i32.", {text("dtype", "Of the data.").one_of({"f32", "i32"}).required()}},
  };
}

const EntryType* find(const std::vector<EntryType>& types, std::string_view name) {
  const auto at = std::find_if(types.begin(), types.end(), [&](const EntryType& t) { return t.name == name; });
  return at == types.end() ? nullptr : &*at;
}

}  // namespace

const std::vector<EntryType>& layer_types() {
  static const std::vector<EntryType> types = make_layer_types();
  return types;
}
const EntryType* find_layer_type(std::string_view name) { return find(layer_types(), name); }

const std::vector<EntryType>& transform_types() {
  static const std::vector<EntryType> types = make_transform_types();
  return types;
}
const EntryType* find_transform_type(std::string_view name) { return find(transform_types(), name); }

const std::vector<Field>& common_layer_fields() {
  static const std::vector<Field> fields = {
      text("type", "What the layer computes.").one_of(names_of(layer_types())).required(),
      text("name", "How others refer to it; the type and a counter where left out."),
      make("inputs", FieldKind::names, "Layers, data or label; the layer before where left out."),
  };
  return fields;
}

const std::vector<Field>& module_use_fields() {
  static const std::vector<Field> fields = {
      text("module", "The block of `modules` that stands here.").required(),
      text("name", "Put before the names of its layers; the module's name where left out."),
      make("inputs", FieldKind::names, "The one layer that is `input` inside; the layer before where left out."),
      integer("repeat", "So many of them one after another, named name.0, name.1, ...").at_least(1).at_most(10000),
  };
  return fields;
}

}  // namespace trainctl
