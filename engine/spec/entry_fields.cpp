// The field table of transforms, and of the fields that every layer and every use of a module has. The fields of
// each layer type are in engine/ops.
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

Field size_field() { return ints("size", "Height and width.").required().items(2).at_least(1).at_most(kMaxImageSide); }
Field method_field(const std::string& fallback) {
  return text("method", "antialias and area smooth where the image shrinks, and round u8 to u8.")
      .one_of({"bilinear", "antialias", "area"})
      .defaults(fallback);
}
Field scaled_decode_field() {
  return flag("scaled_decode", false, "A JPEG is decoded at 1/2, 1/4 or 1/8, if that is no smaller than the result.");
}
Field chance_field() { return number("p", "How likely.").defaults(0.5).at_least(0).at_most(1); }
Field batch_chance_field() {
  return number("p", "How likely for a batch. Of several such transforms the first one that is drawn takes place.")
      .defaults(1.0)
      .at_least(0)
      .at_most(1);
}
Field range_field(const std::string& name, const std::string& doc, double from, double to) {
  return numbers(name, doc).defaults(std::vector<double>{from, to}).items(2).above(0);
}
Field amount_field(const std::string& name, const std::string& doc) {
  return number(name, doc).defaults(0.0).at_least(0).at_most(name == "hue" ? 0.5 : 100);
}

std::vector<EntryType> make_transform_types() {
  return {
      {"resize", "To {resize: [height, width]}.", {size_field(), method_field("bilinear"), scaled_decode_field()}},
      {"center_crop", "The middle of the image; zeros around one that is smaller.", {size_field()}},
      {"random_crop",
       "A part of the image, at a place that is drawn for each sample and pass. In a validation: center_crop.",
       {size_field(), integer("padding", "Zeros on each side, before the part is cut.")
                          .defaults(0)
                          .at_least(0)
                          .at_most(kMaxImageSide)}},
      {"random_resized_crop",
       "A part of drawn size, form and place, resized, drawn for each sample and pass. In a validation: "
       "center_resized_crop.",
       {size_field(), range_field("scale", "Its area, of the image's.", 0.08, 1.0),
        range_field("ratio", "Its width over its height.", 3.0 / 4, 4.0 / 3), method_field("antialias"),
        scaled_decode_field()}},
      {"center_resized_crop",
       "The middle of the image, as wide or high as it has the form of the result, times a fraction; resized.",
       {size_field(), number("fraction", "Of the width or height.").defaults(0.875).above(0).at_most(1),
        method_field("antialias"), scaled_decode_field()}},
      {"pad",
       "A border around the image.",
       {integer("padding", "Pixels on each side.").required().at_least(0).at_most(kMaxImageSide),
        number("value", "Of the border.").defaults(0.0)}},
      {"horizontal_flip",
       "Left and right swapped, drawn for each sample and pass. In a validation: never.",
       {chance_field()}},
      {"color_jitter",
       "Other colours, by factors in [1 - amount, 1 + amount], in an order that is drawn too. In a validation: never.",
       {amount_field("brightness", "Of the values."), amount_field("contrast", "Of the distance from the mean grey."),
        amount_field("saturation", "Of the distance from the pixel's grey."),
        amount_field("hue", "Of a circle of hues, either way.")}},
      {"random_erasing",
       "A box of the image set to a value, drawn for each sample and pass. In a validation: never.",
       {chance_field(), range_field("scale", "Its area, of the image's.", 0.02, 0.33),
        range_field("ratio", "Its width over its height.", 0.3, 3.3), number("value", "In the box.").defaults(0.0)}},
      {"to_float", "x / 255, of u8.", {}},
      {"rescale",
       "x * scale + shift.",
       {number("scale", "Factor.").defaults(1.0), number("shift", "Added after it.").defaults(0.0)}},
      {"normalize",
       "(x - mean) / std, a value a channel.",
       {numbers("mean", "Mean of each channel.").required(),
        numbers("std", "Deviation of each channel.").required().above(0)}},
      {"hwc2chw", "Channels first.", {}},
      {"one_hot",
       "Classes to 0 and, at the class, 1.",
       {integer("classes", "How many there are.").required().at_least(1).at_most(kMaxImageSide)}},
      {"mixup",
       "Each row of a batch and the next one, by a share that is drawn for the batch; so their labels. Last, of f32. "
       "In "
       "a validation: never.",
       {number("alpha", "The share is drawn from Beta(alpha, alpha).").defaults(0.2).above(0).at_most(1000),
        batch_chance_field()}},
      {"cutmix",
       "A box of the next row in each row of a batch; their labels by its area. As mixup.",
       {number("alpha", "The share is drawn from Beta(alpha, alpha).").defaults(1.0).above(0).at_most(1000),
        batch_chance_field()}},
      {"tokenize_bytes",
       "The bytes of a text as tokens 0 to 255.",
       {integer("length", "Tokens of a sample: longer texts are cut off.").required().at_least(1).at_most(1 << 28),
        integer("filler", "After a shorter text.").defaults(0).at_least(0).at_most(2147483647)}},
      {"type_cast", "{type_cast: f32} or i32.", {text("dtype", "Of the data.").one_of({"f32", "i32"}).required()}},
  };
}

}  // namespace

Field cuts_field() { return integer("cuts", "Ways in which a dim is cut.").at_least(1).at_most(kMaxRanks); }

const std::vector<EntryType>& transform_types() {
  static const std::vector<EntryType> types = make_transform_types();
  return types;
}

const Field* bare_value_field(const EntryType& type) {
  if (type.fields.size() == 1) return &type.fields[0];
  const Field* only = nullptr;
  for (const Field& field : type.fields) {
    if (!field.is_required) continue;
    if (only != nullptr) return nullptr;
    only = &field;
  }
  return only;
}

const Field& condition_field() {
  static const Field field = flag("if", true, "false: it is left out, and layers that read it read its input.");
  return field;
}

const std::vector<Field>& common_layer_fields() {
  static const std::vector<Field> fields = {
      text("type", "What the layer computes.").one_of(names_of(layer_types())).required(),
      text("name", "How others refer to it; the type and a counter if omitted."),
      make_field("inputs", FieldKind::names,
                 "Layers, or fields of the samples (data, label); the previous layer if omitted."),
      make_field("outputs", FieldKind::names, "Of a layer with several: their names; 0, 1, ... if omitted."),
      condition_field(),
  };
  return fields;
}

const std::vector<Field>& parameter_group_fields() {
  static const std::vector<Field> fields = {
      make_field("parameters", FieldKind::patterns, "Names or globs of parameters: h.0.ln1.weight, '*.bias'.")
          .required(),
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
