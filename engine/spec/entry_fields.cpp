// The field table of transforms, and of the fields that every layer and every use of a module has. The fields of
// each layer type are in engine/ops.
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

Field size_field() {
  return ints("size", "Height and width of the result.").required().items(2).at_least(1).at_most(kMaxImageSide);
}
Field method_field(const std::string& fallback) {
  return text("method",
              "Interpolation method. antialias and area filter the image when it shrinks and keep u8 images as u8.")
      .one_of({"bilinear", "antialias", "area"})
      .defaults(fallback);
}
Field scaled_decode_field() {
  return flag("scaled_decode", false,
              "Decode a JPEG at 1/2, 1/4, or 1/8 of its size if the decoded image is not smaller than the result.");
}
Field chance_field() {
  return number("p", "Probability of applying the transform.").defaults(0.5).at_least(0).at_most(1);
}
Field batch_chance_field() {
  return number("p",
                "Probability of applying the transform to a batch. If the list has several batch transforms, only the "
                "first one that is drawn is applied.")
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
      {"resize",
       "Resizes the image: {resize: [height, width]}.",
       {size_field(), method_field("bilinear"), scaled_decode_field()}},
      {"center_crop", "Crops the center of the image; smaller images are padded with zeros.", {size_field()}},
      {"random_crop",
       "Crops the image at a random position, drawn per sample and epoch. In validation, center_crop is used instead.",
       {size_field(), integer("padding", "Number of zero pixels added on each side before the crop.")
                          .defaults(0)
                          .at_least(0)
                          .at_most(kMaxImageSide)}},
      {"random_resized_crop",
       "Crops a region of random size, aspect ratio, and position, drawn per sample and epoch, and resizes it. In "
       "validation, center_resized_crop is used instead.",
       {size_field(), range_field("scale", "Crop area as a fraction of the image.", 0.08, 1.0),
        range_field("ratio", "Aspect ratio: width divided by height.", 3.0 / 4, 4.0 / 3), method_field("antialias"),
        scaled_decode_field()}},
      {"center_resized_crop",
       "Crops the largest centered region that has the aspect ratio of the result, scaled by `fraction`, and resizes "
       "it.",
       {size_field(),
        number("fraction", "Size of the region relative to the largest one that fits.")
            .defaults(0.875)
            .above(0)
            .at_most(1),
        method_field("antialias"), scaled_decode_field()}},
      {"pad",
       "Adds a border around the image.",
       {integer("padding", "Number of pixels added on each side.").required().at_least(0).at_most(kMaxImageSide),
        number("value", "Value of the border pixels.").defaults(0.0)}},
      {"horizontal_flip",
       "Flips the image horizontally at random, drawn per sample and epoch. Not applied in validation.",
       {chance_field()}},
      {"color_jitter",
       "Changes brightness, contrast, saturation, and hue in random order, by random factors in [1 - amount, 1 + "
       "amount]. Not applied in validation.",
       {amount_field("brightness", "Maximum change in brightness."),
        amount_field("contrast", "Maximum change in contrast (the distance from the mean gray of the image)."),
        amount_field("saturation", "Maximum change in saturation (the distance from the gray of the pixel)."),
        amount_field("hue", "Maximum hue shift in either direction, as a fraction of the color wheel.")}},
      {"random_erasing",
       "Fills a random box of the image, drawn per sample and epoch, with a constant value. Not applied in validation.",
       {chance_field(), range_field("scale", "Area of the box as a fraction of the image.", 0.02, 0.33),
        range_field("ratio", "Aspect ratio: width divided by height.", 0.3, 3.3),
        number("value", "Value of the erased pixels.").defaults(0.0)}},
      {"to_float", "Converts u8 to f32 as x / 255.", {}},
      {"rescale",
       "Computes x * scale + shift.",
       {number("scale", "Scaling factor.").defaults(1.0),
        number("shift", "Offset added after scaling.").defaults(0.0)}},
      {"normalize",
       "Computes (x - mean) / std for each channel.",
       {numbers("mean", "Mean of each channel.").required(),
        numbers("std", "Standard deviation of each channel.").required().above(0)}},
      {"hwc2chw", "Moves the channel dim from last to first.", {}},
      {"one_hot",
       "Converts a class index to a one-hot vector.",
       {integer("classes", "Number of classes.").required().at_least(1).at_most(kMaxImageSide)}},
      {"mixup",
       "Mixes each sample of a batch and its label with the next sample and its label, in a proportion drawn per "
       "batch. Must come last and requires f32 data. Not applied in validation.",
       {number("alpha", "Parameter of the Beta(alpha, alpha) distribution from which the mixing proportion is drawn.")
            .defaults(0.2)
            .above(0)
            .at_most(1000),
        batch_chance_field()}},
      {"cutmix",
       "Replaces a box in each sample of a batch with the same box of the next sample and mixes their labels in "
       "proportion to its area. The restrictions of mixup apply.",
       {number("alpha", "Parameter of the Beta(alpha, alpha) distribution from which the mixing proportion is drawn.")
            .defaults(1.0)
            .above(0)
            .at_most(1000),
        batch_chance_field()}},
      {"tokenize_bytes",
       "Converts the bytes of a text to tokens 0 to 255.",
       {integer("length", "Number of tokens per sample; longer texts are truncated.")
            .required()
            .at_least(1)
            .at_most(1 << 28),
        integer("filler", "Padding token for shorter texts.").defaults(0).at_least(0).at_most(2147483647)}},
      {"type_cast",
       "Converts the data type: {type_cast: f32} or {type_cast: i32}.",
       {text("dtype", "Target data type.").one_of({"f32", "i32"}).required()}},
  };
}

}  // namespace

Field cuts_field() { return integer("cuts", "Number of shards along a dim.").at_least(1).at_most(kMaxRanks); }

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
  static const Field field =
      flag("if", true, "Whether to include the layer. If false, layers that read its output read its input instead.");
  return field;
}

const std::vector<Field>& common_layer_fields() {
  static const std::vector<Field> fields = {
      text("type", "Operation that the layer computes.").one_of(names_of(layer_types())).required(),
      text("name", "Name by which other layers and fields refer to this layer; if omitted, the type and a counter."),
      make_field("inputs", FieldKind::names,
                 "Layers or sample fields (data, label) that the layer reads; if omitted, the previous layer."),
      make_field(
          "outputs", FieldKind::names,
          "Names of the outputs of a layer with several outputs; if omitted, the outputs are named 0, 1, and so on."),
      condition_field(),
  };
  return fields;
}

const std::vector<Field>& parameter_group_fields() {
  static const std::vector<Field> fields = {
      make_field("parameters", FieldKind::patterns,
                 "Parameters of the group, by name or glob: h.0.ln1.weight, '*.bias'.")
          .required(),
      number("learning_rate_scale", "Factor applied to the learning rate of these parameters.")
          .defaults(1.0)
          .at_least(0),
  };
  return fields;
}

const std::vector<Field>& module_use_fields() {
  static const std::vector<Field> fields = {
      text("module", "Module to insert here, by its name in `modules`.").required(),
      text("name", "Prefix of the layer names; if omitted, the module's name."),
      make_field("inputs", FieldKind::names, "Layer that the module reads as `input`; if omitted, the previous layer."),
      make_field("with", FieldKind::values, "Values of the module's arguments."),
      integer("repeat", "Number of consecutive copies, named name.0, name.1, ...").at_least(1).at_most(10000),
      text("index",
           "With `repeat`, the variable that contains the number of the copy, counted from 0, in expressions in `with` "
           "and in the module."),
      condition_field(),
  };
  return fields;
}

}  // namespace trainctl
