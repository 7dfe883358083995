// Composes the steps of a chain: checks each transform against its input, and joins consecutive ones into one pass.
#include "engine/train/data/chain_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

[[noreturn]] void fail(const TransformSpec& spec, const std::string& message, const std::string& hint = {}) {
  throw SpecError({}, spec.path, spec.name + ": " + message, hint);
}

/// A parameter given as a number or as a list of numbers.
std::vector<double> numbers(const TransformSpec& spec, std::string_view name) {
  const Value* value = spec.attrs.find(name);
  if (value == nullptr) fail(spec, fmt::format("'{}' is missing", name));
  if (const auto* v = std::get_if<std::vector<double>>(value)) return *v;
  if (const auto* v = std::get_if<Ints>(value)) return {v->begin(), v->end()};
  if (const auto* v = std::get_if<double>(value)) return {*v};
  if (const auto* v = std::get_if<int64_t>(value)) return {static_cast<double>(*v)};
  fail(spec, fmt::format("'{}' is not a number", name));
}

/// A parameter that is a range [from, to]; `otherwise` if the parameter is absent.
Range range(const TransformSpec& spec, std::string_view name, const Range& otherwise) {
  if (!spec.attrs.has(name)) return otherwise;
  const std::vector<double> ends = numbers(spec, name);
  if (ends.size() != 2 || !(ends[0] > 0) || ends[1] < ends[0])
    fail(spec, fmt::format("{} [{}] is not a valid range", name, fmt::join(ends, ", ")),
         "write [from, to] with numbers "
         "above 0");
  return {ends[0], ends[1]};
}

ImageSize image_size_of(const TransformSpec& spec) {
  const Ints size = spec.attrs.ints("size");
  if (size.size() != 2 || size[0] < 1 || size[1] < 1)
    fail(spec, fmt::format("{} is not a valid image size", to_string(size)), "write [height, width], both at least 1");
  return {size[0], size[1]};
}

Resample method_of(const TransformSpec& spec, std::string_view otherwise) {
  const std::string method = spec.attrs.text("method", otherwise);
  if (method == "bilinear") return Resample::bilinear;
  if (method == "antialias") return Resample::antialias;
  if (method == "area") return Resample::area;
  fail(spec, fmt::format("'{}' is not a resize method", method), "use bilinear, antialias or area");
}

std::string shape_text(const Shape& shape) {
  std::vector<std::string> dims;
  for (const int64_t dim : shape) dims.push_back(dim == kAnySize ? "any" : std::to_string(dim));
  return "[" + join(dims) + "]";
}

/// A value that the parameter gives for elements of u8 or f32.
double value_for(const TransformSpec& spec, ElementType type) {
  const double value = spec.attrs.number("value", 0.0);
  const bool fits = type == ElementType::f32 || (value >= 0 && value <= 255 && value == std::floor(value));
  if (!fits) fail(spec, fmt::format("the value {} is not valid for u8 images", value), "use an integer from 0 to 255");
  return value;
}

}  // namespace

void ChainBuilder::add(const TransformSpec& spec) {
  using Add = void (ChainBuilder::*)(const TransformSpec&);
  static const std::vector<std::pair<std::string, Add>> kAll = {
      {"resize", &ChainBuilder::add_resize},
      {"center_crop", &ChainBuilder::add_center_crop},
      {"random_crop", &ChainBuilder::add_random_crop},
      {"random_resized_crop", &ChainBuilder::add_random_resized_crop},
      {"center_resized_crop", &ChainBuilder::add_center_resized_crop},
      {"pad", &ChainBuilder::add_pad},
      {"horizontal_flip", &ChainBuilder::add_horizontal_flip},
      {"color_jitter", &ChainBuilder::add_color_jitter},
      {"random_erasing", &ChainBuilder::add_random_erasing},
      {"rescale", &ChainBuilder::add_rescale},
      {"normalize", &ChainBuilder::add_normalize},
      {"to_float", &ChainBuilder::add_to_float},
      {"hwc2chw", &ChainBuilder::add_hwc2chw},
      {"type_cast", &ChainBuilder::add_type_cast},
      {"one_hot", &ChainBuilder::add_one_hot},
      {"tokenize_bytes", &ChainBuilder::add_tokenize_bytes},
  };
  if (is_last_) fail(spec, "comes after type_cast i32, which must come last");
  const auto found =
      std::find_if(kAll.begin(), kAll.end(), [&](const auto& entry) { return entry.first == spec.name; });
  if (found == kAll.end()) {
    std::vector<std::string> names;
    for (const auto& [name, add] : kAll) names.push_back(name);
    fail(spec, "unknown transform", join(names));
  }
  (this->*found->second)(spec);
  const Shape& shape = type_.shape;
  const bool is_known = std::find(shape.begin(), shape.end(), kAnySize) == shape.end();
  if (is_known && num_elements(shape) > kMaxImageElements)
    fail(spec, fmt::format("produces samples of {}, {}", to_string(shape), format_bytes(4 * num_elements(shape))),
         fmt::format("a sample can have at most {}", format_bytes(4 * kMaxImageElements)));
}

void ChainBuilder::finish(bool keeps_bytes) {
  const bool is_known = std::find(type_.shape.begin(), type_.shape.end(), kAnySize) == type_.shape.end();
  if (keeps_bytes && is_known && pass_ && pass_->from == ElementType::u8 && pass_->to == ElementType::f32)
    leave_bytes();
  flush();
  if (!is_written_ || may_be_reversed_) settle(true);
}

/// Leaves the last pass out, so that the result is bytes. The chain continues as if that pass did not exist, except for
/// the shape.
void ChainBuilder::leave_bytes() {
  const PixelPass last = *std::exchange(pass_, std::nullopt);
  const Shape& shape = type_.shape;
  ImageSize size{1, num_elements(shape)};
  int64_t channels = 1;
  if (shape.size() == 3) {
    const bool planes = layout_ == ChannelOrder::channels_first;
    size = planes ? ImageSize{shape[1], shape[2]} : ImageSize{shape[0], shape[1]};
    channels = planes ? shape[0] : shape[2];
  }
  byte_map_ = std::make_shared<ByteMap>(last, size, channels);
  type_.type = ElementType::u8;
  layout_ = last.from_layout;
}

PixelPass& ChainBuilder::pass() {
  if (!pass_) pass_ = PixelPass{type_.type, type_.type, layout_, layout_};
  return *pass_;
}

void ChainBuilder::to_f32() {
  if (type_.type == ElementType::f32) return;
  pass().to = ElementType::f32;  // Set before the type changes, because a pass begins with the type so far.
  type_.type = ElementType::f32;
}

void ChainBuilder::add_op(PixelOp op) {
  to_f32();
  pass().ops.push_back(std::move(op));
}

void ChainBuilder::flush() {
  if (!pass_) return;
  const PixelPass made = *std::exchange(pass_, std::nullopt);
  push(make_pass(made));
  may_be_reversed_ = false;
}

void ChainBuilder::settle(bool own) {
  flush();
  if (!may_be_reversed_ && (is_written_ || !own)) return;
  pass();
  flush();
}

void ChainBuilder::push(SampleStep step) {
  if (step.kind != SampleStep::Kind::in_place) is_written_ = step.kind == SampleStep::Kind::write;
  steps_.push_back(std::move(step));
}

void ChainBuilder::require_image(const TransformSpec& spec) const {
  if (type_.shape.size() == 3 && layout_ == ChannelOrder::channels_last) return;
  fail(spec, fmt::format("needs an image [h, w, c], but the sample is {}", shape_text(type_.shape)),
       layout_ == ChannelOrder::channels_first ? "move it before hwc2chw" : "");
}

/// Adds a cut or a flip. If it stays inside the image, it moves before the current pass. The pass maps each value by
/// itself, so the bits stay the same; it then maps fewer values, and may become the last pass, which a device can do.
void ChainBuilder::cut_out(Choose choose, bool stays_inside) {
  if (stays_inside) return push(make_crop(std::move(choose), byte_size(pass_ ? pass_->from : type_.type)));
  flush();
  push(make_cut(type_.type, 0, std::move(choose)));
}

void ChainBuilder::resize_to(ElementType from, Resample method, const ImageSize& size, bool may_scale) {
  push(make_resize(from, method, size, may_scale));
  if (method == Resample::bilinear) type_.type = ElementType::f32;
  type_.shape = {size.height, size.width, type_.shape[2]};
}

void ChainBuilder::add_resize(const TransformSpec& spec) {
  require_image(spec);
  const ImageSize size = image_size_of(spec);
  const Resample method = method_of(spec, "bilinear");
  if (type_.type == ElementType::i32)
    fail(spec, "needs f32 or u8, but the sample is i32", "add {type_cast: f32} before it");
  if (knows_size() && known_size() == size) {
    if (method == Resample::bilinear) to_f32();
    return;
  }
  settle(false);
  resize_to(type_.type, method, size, spec.attrs.flag("scaled_decode", false));
}

void ChainBuilder::add_center_crop(const TransformSpec& spec) {
  require_image(spec);
  const ImageSize size = image_size_of(spec);
  const bool stays_inside = knows_size() && size.height <= type_.shape[0] && size.width <= type_.shape[1];
  cut_out([size](const ImageSize& image, SampleRng&) { return central_box(image, size); }, stays_inside);
  type_.shape = {size.height, size.width, type_.shape[2]};
}

void ChainBuilder::add_random_crop(const TransformSpec& spec) {
  require_image(spec);
  is_random_ = true;
  const ImageSize size = image_size_of(spec);
  const int64_t padding = spec.attrs.integer("padding", 0);
  if (knows_size()) {
    const int64_t down = type_.shape[0] + 2 * padding - size.height, across = type_.shape[1] + 2 * padding - size.width;
    if (down < 0 || across < 0)
      fail(spec,
           fmt::format("crops {} from an image of {}", to_string(spec.attrs.ints("size")), to_string(type_.shape)),
           fmt::format("set padding: {}, or add resize before it", padding + (std::max(-down, -across) + 1) / 2));
  }
  const Choose choose = [size, padding](const ImageSize& image, SampleRng& rng) {
    return draw_box(image, size, padding, rng);
  };
  cut_out(choose, knows_size() && padding == 0);
  type_.shape = {size.height, size.width, type_.shape[2]};
}

void ChainBuilder::add_random_resized_crop(const TransformSpec& spec) {
  require_image(spec);
  if (type_.type == ElementType::i32)
    fail(spec, "needs f32 or u8, but the sample is i32", "add {type_cast: f32} before it");
  settle(false);
  is_random_ = true;
  const Range scale = range(spec, "scale", {0.08, 1.0}), ratio = range(spec, "ratio", {3.0 / 4, 4.0 / 3});
  if (scale.to > 1)
    fail(spec, fmt::format("the upper limit of scale is {}", scale.to), "use at most 1, the whole image");
  push(make_crop(
      [scale, ratio](const ImageSize& image, SampleRng& rng) { return draw_resized_box(image, scale, ratio, rng); },
      byte_size(type_.type)));
  resize_to(type_.type, method_of(spec, "antialias"), image_size_of(spec), spec.attrs.flag("scaled_decode", false));
}

void ChainBuilder::add_center_resized_crop(const TransformSpec& spec) {
  require_image(spec);
  if (type_.type == ElementType::i32)
    fail(spec, "needs f32 or u8, but the sample is i32", "add {type_cast: f32} before it");
  settle(false);
  const ImageSize size = image_size_of(spec);
  const double fraction = spec.attrs.number("fraction", 0.875);
  push(make_crop(
      [size, fraction](const ImageSize& image, SampleRng&) { return central_resized_box(image, size, fraction); },
      byte_size(type_.type)));
  resize_to(type_.type, method_of(spec, "antialias"), size, spec.attrs.flag("scaled_decode", false));
}

void ChainBuilder::add_pad(const TransformSpec& spec) {
  require_image(spec);
  flush();
  const int64_t padding = spec.attrs.integer("padding", 0);
  push(make_cut(type_.type, value_for(spec, type_.type), [padding](const ImageSize& image, SampleRng&) {
    return PixelBox{-padding, -padding, image.height + 2 * padding, image.width + 2 * padding};
  }));
  for (size_t dim = 0; dim < 2; ++dim)
    if (type_.shape[dim] != kAnySize) type_.shape[dim] += 2 * padding;
}

void ChainBuilder::add_horizontal_flip(const TransformSpec& spec) {
  require_image(spec);
  is_random_ = true;
  push(make_flip(spec.attrs.number("p", 0.5)));
  may_be_reversed_ = true;
}

void ChainBuilder::add_color_jitter(const TransformSpec& spec) {
  require_image(spec);
  if (type_.type != ElementType::u8 || type_.shape[2] != 3)
    fail(spec,
         fmt::format("needs u8 [h, w, 3], but the sample is {} {}", to_string(type_.type), shape_text(type_.shape)),
         "move it before to_float, rescale and normalize");
  settle(true);
  is_random_ = true;
  push(make_color_jitter({spec.attrs.number("brightness", 0.0), spec.attrs.number("contrast", 0.0),
                          spec.attrs.number("saturation", 0.0), spec.attrs.number("hue", 0.0)}));
}

void ChainBuilder::add_random_erasing(const TransformSpec& spec) {
  if (type_.shape.size() != 3 || type_.type == ElementType::i32)
    fail(spec, fmt::format("needs an image of u8 or f32, but the sample is {} {}", to_string(type_.type),
                           shape_text(type_.shape)));
  settle(true);
  is_random_ = true;
  push(make_erasing(type_.type, layout_,
                    {spec.attrs.number("p", 0.5), range(spec, "scale", {0.02, 0.33}), range(spec, "ratio", {0.3, 3.3}),
                     value_for(spec, type_.type)}));
}

void ChainBuilder::add_rescale(const TransformSpec& spec) {
  add_op({PixelOp::Kind::multiply_add,
          {static_cast<float>(spec.attrs.number("scale", 1.0))},
          {static_cast<float>(spec.attrs.number("shift", 0.0))}});
}

void ChainBuilder::add_normalize(const TransformSpec& spec) {
  const std::vector<double> mean = numbers(spec, "mean"), deviation = numbers(spec, "std");
  const bool image = type_.shape.size() == 3;
  const int64_t channels = !image ? 1 : type_.shape[layout_ == ChannelOrder::channels_first ? 0 : 2];
  for (const auto* values : {&mean, &deviation}) {
    if (values->size() != 1 && static_cast<int64_t>(values->size()) != channels) {
      fail(spec,
           fmt::format("mean and std have {} values, but the sample {} has {} channels", values->size(),
                       shape_text(type_.shape), channels),
           type_.shape.size() == 1
               ? "give one value for all columns, or begin the network with a batch_norm layer, which "
                 "learns the mean and deviation of each"
               : "give one value, or one per channel");
    }
  }
  PixelOp op{PixelOp::Kind::subtract_multiply, {}, {}};
  for (const double value : mean) op.a.push_back(static_cast<float>(value));
  for (const double value : deviation) {
    if (!(std::abs(value) > 0)) fail(spec, "std is 0", "use a positive number");
    op.b.push_back(static_cast<float>(1.0 / value));
  }
  add_op(std::move(op));
}

void ChainBuilder::add_to_float(const TransformSpec& spec) {
  if (type_.type != ElementType::u8)
    fail(spec, fmt::format("needs u8 samples, not {}", to_string(type_.type)),
         "put to_float before transforms that return floats, such as resize; or use rescale");
  add_op({PixelOp::Kind::divide, {255.0f}, {}});
}

void ChainBuilder::add_hwc2chw(const TransformSpec& spec) {
  if (type_.shape.size() != 3 || layout_ == ChannelOrder::channels_first)
    fail(spec, fmt::format("needs an image [h, w, c], but the sample is {}", shape_text(type_.shape)),
         layout_ == ChannelOrder::channels_first ? "hwc2chw may appear only once" : "");
  pass().to_layout = ChannelOrder::channels_first;  // Set before the layout changes, because the pass begins with the
                                                    // layout so far.
  layout_ = ChannelOrder::channels_first;
  type_.shape = {type_.shape[2], type_.shape[0], type_.shape[1]};
}

void ChainBuilder::add_type_cast(const TransformSpec& spec) {
  const std::string dtype = spec.attrs.text("dtype");
  if (dtype != "f32" && dtype != "i32")
    fail(spec, fmt::format("'{}' is not a valid data type", dtype), "use f32 or i32");
  if (dtype == "f32") {
    to_f32();
    return;
  }
  is_last_ = true;
  if (type_.type == ElementType::i32) return;
  settle(true);
  push(make_integers(type_.type));
  type_.type = ElementType::i32;
}

void ChainBuilder::add_one_hot(const TransformSpec& spec) {
  if (type_.type == ElementType::f32 || type_.shape.size() == 3)
    fail(spec, fmt::format("needs classes of u8 or i32, but the sample is {} {}", to_string(type_.type),
                           shape_text(type_.shape)));
  flush();
  const int64_t classes = spec.attrs.integer("classes");
  push(make_one_hot(type_.type, classes));
  type_.type = ElementType::f32;
  type_.shape.push_back(classes);
}

void ChainBuilder::add_tokenize_bytes(const TransformSpec& spec) {
  if (type_.type != ElementType::u8 || type_.shape.size() != 1)
    fail(spec, fmt::format("needs bytes, but the sample is {} {}", to_string(type_.type), shape_text(type_.shape)));
  flush();
  const int64_t length = spec.attrs.integer("length");
  push(make_tokens(length, static_cast<int32_t>(spec.attrs.integer("filler", 0))));
  type_ = {ElementType::i32, {length}};
}

}  // namespace trainctl
