// Presents a Source as a data set: each field is read, decoded if it is an image, transformed, and left in a small
// type.
#include "engine/train/data/source_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/spec/batch_transforms.h"
#include "engine/train/data/batch_mixing.h"
#include "engine/train/data/elements.h"

namespace trainctl {
namespace {

/// Element type that transforms accept: u8, i32 or f32.
ElementType transformable(ElementType type) {
  switch (type) {
    case ElementType::u8:
      return ElementType::u8;
    case ElementType::u16:
    case ElementType::i32:
    case ElementType::i64:
      return ElementType::i32;
    default:
      return ElementType::f32;
  }
}

bool is_float(ElementType type) { return type == ElementType::f32 || type == ElementType::bf16; }

/// Returns whether the bytes of a field are pixels, which networks read as numbers and not as indices.
bool has_pixels(const DatasetSpec& spec, const SourceField& field) {
  return field.encoding == Encoding::image || (spec.has_file_splits() && field.name != "label");
}

}  // namespace

std::vector<TransformSpec> transforms_of(const DatasetSpec& spec, const std::vector<SourceField>& fields,
                                         const std::string& field) {
  const auto first = std::find_if(fields.begin(), fields.end(), [](const SourceField& f) { return f.name != "label"; });
  const bool is_first = first != fields.end() && first->name == field;
  std::vector<TransformSpec> own;
  for (const TransformSpec& transform : spec.transforms)
    if (transform.field == field || (transform.field.empty() && is_first)) own.push_back(transform);
  return own;
}

bool may_keep_bytes(const std::string& field, const std::vector<TransformSpec>& transforms) {
  return field != "label" && std::none_of(transforms.begin(), transforms.end(), is_of_batch);
}

FieldWays::FieldWays(const std::vector<SourceField>& from, const DatasetSpec& spec, Bytes bytes) {
  for (const SourceField& field : from) add(from, field, spec, bytes);
  (void)BatchMixing::of(spec, fields);
}

void FieldWays::add(const std::vector<SourceField>& all, const SourceField& from, const DatasetSpec& spec,
                    Bytes bytes) {
  std::vector<TransformSpec> specs = transforms_of(spec, all, from.name);
  const bool keeps_bytes = bytes == Bytes::stay && may_keep_bytes(from.name, specs);
  std::erase_if(specs, [](const TransformSpec& transform) { return is_of_batch(transform); });
  FieldWay way{from, from.type, {}};
  SampleField field{from.name, from.type, from.shape, !is_float(from.type) && !has_pixels(spec, from)};
  const bool any_length = std::find(from.shape.begin(), from.shape.end(), kAnySize) != from.shape.end();
  if (from.encoding == Encoding::image || any_length || !specs.empty()) {
    way.type = transformable(from.type);
    const int channels = spec.type == "mnist" ? 1 : spec.channels;
    const Shape shape = from.encoding == Encoding::image ? Shape{kAnySize, kAnySize, channels} : from.shape;
    const std::string path = spec.transforms.empty() || spec.transforms.front().field.empty()
                                 ? "dataset.transforms"
                                 : "dataset.transforms." + from.name;
    way.transforms.emplace(specs, SampleType{way.type, shape}, path, keeps_bytes);
    field.map = way.transforms->byte_map();
    field.type = way.transforms->result().type;
    field.shape = way.transforms->result().shape;
    field.is_integer =
        !field.map && !is_float(field.type) && (field.type == ElementType::i32 || !has_pixels(spec, from));
    is_random = is_random || way.transforms->is_random();
    is_work = true;
  }
  if (field.name == "label") field.is_integer = spec.label_dtype != "f32" && !has_soft_labels(spec);
  fields.push_back(std::move(field));
  ways.push_back(std::move(way));
}

void SourceSet::prepare(ReadState& state) const {
  state.files.resize(of_.ways.size());
  state.wanted.resize(of_.ways.size());
}

void SourceSet::read(int64_t sample, ReadState& state, SampleOutputs to) const {
  prepare(state);
  for (size_t i = 0; i < of_.ways.size(); ++i) state.wanted[i] = to[i] != nullptr;
  StageTimer timer(state.seconds, ReadStage::read);
  source_->read(sample, state.wanted, state.files);
  const SampleRng start = state.rng;
  for (size_t i = 0; i < of_.ways.size(); ++i) {
    if (to[i] == nullptr) continue;
    state.rng = start;
    if (of_.ways[i].from.encoding == Encoding::image)
      write_image(of_.ways[i], state.files[i], sample, state, timer, to[i]);
    else
      write_array(of_.ways[i], state.files[i], sample, state, timer, to[i]);
  }
}

/// The same as SampleTransforms::run_encoded, but measures the time of decoding and of transforming.
void SourceSet::write_image(const FieldWay& way, const FieldBytes& bytes, int64_t sample, ReadState& state,
                            StageTimer& timer, void* to) const {
  timer.next(ReadStage::decode);
  static const std::string no_name;  // The name is needed only for errors, and a tar file would have to be read for it.
  DecodeRequest request;
  request.channels = static_cast<int>(way.transforms->input().shape.at(2));
  CropPlan plan;
  try {
    EncodedImage encoded(bytes, no_name);
    plan = way.transforms->plan_crop(encoded.size(), state.rng);
    if (plan.is_inside) request.region = plan.box;
    request.scale = plan.scale;
    plan.scale = encoded.decode(request, state.transforms.decoded);
  } catch (const EnvError& error) {
    throw EnvError(source_->where(sample) + error.what());  // ": a damaged JPEG: …"
  }
  timer.next(ReadStage::transform);
  way.transforms->run(view_of(state.transforms.decoded.view()), state.rng, state.transforms, to, plan);
}

void SourceSet::write_array(const FieldWay& way, const FieldBytes& bytes, int64_t sample, ReadState& state,
                            StageTimer& timer, void* to) const {
  timer.next(ReadStage::transform);
  if (!way.transforms) {
    std::memcpy(to, bytes.data(), bytes.size());
    return;
  }
  try {
    transform_array(way, bytes, state, to);
  } catch (const EnvError& error) {
    throw EnvError(source_->where(sample) + ": " + way.from.name + ": " + error.what());
  }
}

void SourceSet::transform_array(const FieldWay& way, const FieldBytes& bytes, ReadState& state, void* to) {
  const void* data = bytes.data();
  const auto elements = static_cast<int64_t>(bytes.size()) / byte_size(way.from.type);
  if (way.type != way.from.type) {
    const DType type = way.type == ElementType::i32 ? DType::i32 : DType::f32;
    state.bytes.resize(static_cast<size_t>(elements * byte_size(type)));
    convert_elements(bytes.data(), way.from.type, elements, type, state.bytes.data());
    data = state.bytes.data();
  }
  SampleView view = view_of(data, way.from.shape);
  if (way.from.shape == Shape{kAnySize}) view.width = view.stride = elements;
  way.transforms->run(view, state.rng, state.transforms, to);
}

}  // namespace trainctl
