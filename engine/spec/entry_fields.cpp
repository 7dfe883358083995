// The field table of transforms, and of the fields that every layer and every use of a module has. The fields of
// each layer type are in engine/ops.
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

std::vector<EntryType> make_transform_types() {
  return {
      {"resize",
       "Bilinear, to {resize: [height, width]}.",
       {ints("size", "Height and width.").required().items(2).at_least(1).at_most(kMaxImageSide)}},
      {"center_crop",
       "The middle of the image; zeros around one that is smaller.",
       {ints("size", "Height and width.").required().items(2).at_least(1).at_most(kMaxImageSide)}},
      {"random_crop",
       "A part of the image, at a place that is drawn for each sample and pass. In a validation: center_crop.",
       {ints("size", "Height and width.").required().items(2).at_least(1).at_most(kMaxImageSide),
        integer("padding", "Zeros on each side, before the part is cut.").defaults(0).at_least(0).at_most(kMaxImageSide)}},
      {"horizontal_flip",
       "Left and right swapped, drawn for each sample and pass. In a validation: never.",
       {number("p", "How likely.").defaults(0.5).at_least(0).at_most(1)}},
      {"rescale",
       "x * scale + shift.",
       {number("scale", "Factor.").defaults(1.0), number("shift", "Added after it.").defaults(0.0)}},
      {"normalize",
       "(x - mean) / std, a value a channel.",
       {numbers("mean", "Mean of each channel.").required(),
        numbers("std", "Deviation of each channel.").required().above(0)}},
      {"hwc2chw", "Channels first.", {}},
      {"type_cast", "{type_cast: f32} or i32.", {text("dtype", "Of the data.").one_of({"f32", "i32"}).required()}},
  };
}

}  // namespace

Field cuts_field() { return integer("cuts", "Ways in which a dim is cut.").at_least(1).at_most(kMaxRanks); }

const std::vector<EntryType>& transform_types() {
  static const std::vector<EntryType> types = make_transform_types();
  return types;
}

const Field& condition_field() {
  static const Field field = flag("if", true, "false: it is left out, and layers that read it read its input.");
  return field;
}

const std::vector<Field>& common_layer_fields() {
  static const std::vector<Field> fields = {
      text("type", "What the layer computes.").one_of(names_of(layer_types())).required(),
      text("name", "How others refer to it; the type and a counter if omitted."),
      make_field("inputs", FieldKind::names, "Layers, or fields of the samples (data, label); the previous layer if omitted."),
      make_field("outputs", FieldKind::names, "Of a layer with several: their names; 0, 1, ... if omitted."),
      condition_field(),
  };
  return fields;
}

const std::vector<Field>& parameter_group_fields() {
  static const std::vector<Field> fields = {
      make_field("parameters", FieldKind::patterns, "Names or globs of parameters: h.0.ln1.weight, '*.bias'.").required(),
      number("learning_rate_scale", "Factor of their learning rate.").defaults(1.0).at_least(0),
  };
  return fields;
}

const std::vector<Field>& module_use_fields() {
  static const std::vector<Field> fields = {
      text("module", "The block of `modules` to insert here.").required(),
      text("name", "Prefix of the names of its layers; the module's name if omitted."),
      make_field("inputs", FieldKind::names, "The layer that is `input` inside; the previous layer if omitted."),
      make_field("with", FieldKind::values, "Values of the module's arguments."),
      integer("repeat", "Number of copies, one after another, named name.0, name.1, ...").at_least(1).at_most(10000),
      text("index", "With repeat: what expressions in `with` and in the module call the number of the copy, from 0."),
      condition_field(),
  };
  return fields;
}

}  // namespace trainctl
