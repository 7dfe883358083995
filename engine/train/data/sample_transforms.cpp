// The transforms of one field of a sample, checked against its type and shape and composed once.
#include "engine/train/data/sample_transforms.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/train/data/chain_builder.h"

namespace trainctl {

SampleView view_of(const void* data, const Shape& shape) {
  if (shape.size() == 3) return {data, shape[0], shape[1], shape[2], shape[1] * shape[2]};
  const int64_t elements = num_elements(shape);
  return {data, 1, elements, 1, elements};
}

SampleView view_of(const ImageView& image) {
  return {image.pixels, image.height, image.width, image.channels, image.stride};
}

int64_t TransformScratch::memory_bytes() const {
  return static_cast<int64_t>(buffers[0].capacity() + buffers[1].capacity() + row.capacity()) +
         resample.memory_bytes() + decoded.memory_bytes();
}

bool has_random_transforms(const std::vector<TransformSpec>& specs) {
  static const std::vector<std::string> kRandom = {
      "random_crop", "random_resized_crop", "horizontal_flip", "color_jitter", "random_erasing", "mixup", "cutmix"};
  return std::any_of(specs.begin(), specs.end(), [](const TransformSpec& spec) {
    return std::find(kRandom.begin(), kRandom.end(), spec.name) != kRandom.end();
  });
}

SampleTransforms::SampleTransforms(const std::vector<TransformSpec>& specs, const SampleType& input,
                                   const std::string& path, bool keeps_bytes)
    : input_(input) {
  ChainBuilder builder(input);
  for (const TransformSpec& spec : specs) builder.add(spec);
  builder.finish(keeps_bytes);
  byte_map_ = builder.byte_map();
  result_ = builder.type();
  is_random_ = builder.is_random();
  steps_ = builder.take();
  for (size_t i = 0; i < steps_.size(); ++i)
    if (steps_[i].kind == SampleStep::Kind::write) last_write_ = i;
  if (std::find(result_.shape.begin(), result_.shape.end(), kAnySize) == result_.shape.end()) return;
  const bool is_image = result_.shape.size() == 3;
  throw SpecError(
      {}, path,
      is_image ? "images of a folder may have any size, but a batch needs a single size"
               : "the texts have different lengths, but a batch needs a single length",
      is_image ? "add {random_resized_crop: [224, 224]}, {center_resized_crop: [224, 224]} or {resize: [224, 224]}"
               : "add {tokenize_bytes: 512}");
}

SampleTransforms::~SampleTransforms() = default;
SampleTransforms::SampleTransforms(SampleTransforms&&) noexcept = default;

void SampleTransforms::run(const SampleView& in, SampleRng& rng, TransformScratch& scratch, void* out,
                           const CropPlan& plan) const {
  SampleAtWork sample{.view = in, .box = {}, .decoded = {}};
  if (plan.scale > 1) {
    const PixelBox& box = *plan.box;
    const auto scale = static_cast<double>(plan.scale);
    sample.decoded = {static_cast<double>(box.top % plan.scale) / scale,
                      static_cast<double>(box.left % plan.scale) / scale, static_cast<double>(box.height) / scale,
                      static_cast<double>(box.width) / scale};
  }
  size_t buffer = 0;
  std::byte* written = nullptr;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const SampleStep& step = steps_[i];
    if (step.choose) {
      const bool is_planned = i == 0 && plan.box.has_value();
      sample.box = !is_planned      ? step.choose(sample.size(), rng)
                   : plan.is_inside ? PixelBox{0, 0, in.height, in.width}
                                    : *plan.box;
    }
    if (step.kind == SampleStep::Kind::write) {
      written = static_cast<std::byte*>(out);
      if (i != last_write_) {
        std::vector<std::byte>& room = scratch.buffers[buffer];
        buffer = 1 - buffer;
        const auto bytes = static_cast<size_t>(step.bytes(sample));
        if (room.size() < bytes) room.resize(bytes);
        written = room.data();
      }
    }
    step.run(sample, written, rng, scratch);
  }
}

CropPlan SampleTransforms::plan_crop(const ImageSize& size, SampleRng& rng) const {
  CropPlan plan;
  const SampleStep& first = steps_.front();
  if (first.choose) plan.box = first.choose(size, rng);
  const SampleStep* resize = first.choose ? (steps_.size() > 1 ? &steps_[1] : nullptr) : &first;
  const bool may_scale = resize != nullptr && resize->shrinks_to;
  if (may_scale && !plan.box) plan.box = PixelBox{0, 0, size.height, size.width};
  plan.is_inside = plan.box && plan.box->is_inside(size);
  if (!may_scale || !plan.is_inside) return plan;
  for (const int scale : {8, 4, 2}) {
    if (plan.box->height < scale * resize->shrinks_to->height || plan.box->width < scale * resize->shrinks_to->width)
      continue;
    plan.scale = scale;
    break;
  }
  return plan;
}

void SampleTransforms::run_encoded(std::span<const std::byte> file, const std::string& name, SampleRng& rng,
                                   TransformScratch& scratch, void* out) const {
  DecodeRequest request;
  request.channels = static_cast<int>(input_.shape.at(2));
  EncodedImage encoded(file, name);
  CropPlan plan = plan_crop(encoded.size(), rng);
  if (plan.is_inside) request.region = plan.box;
  request.scale = plan.scale;
  plan.scale = encoded.decode(request, scratch.decoded);
  run(view_of(scratch.decoded.view()), rng, scratch, out, plan);
}

}  // namespace trainctl
