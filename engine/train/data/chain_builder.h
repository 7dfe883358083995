// Composes the steps of a chain: checks each transform against its input, and joins consecutive ones into one pass.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/data/byte_map.h"
#include "engine/train/data/sample_steps.h"

namespace trainctl {

class ChainBuilder {
 public:
  explicit ChainBuilder(const SampleType& input) : type_(input) {}

  /// Throws SpecError if the transform does not fit.
  void add(const TransformSpec& spec);
  /// Makes sure that the last step writes the result, or changes a result that an earlier step has written. With
  /// `keeps_bytes` a last pass from u8 to f32 is left out: the result is then u8 in the layout before that pass, and
  /// byte_map() describes the pass that was left out.
  void finish(bool keeps_bytes = false);
  std::shared_ptr<const ByteMap> byte_map() const { return byte_map_; }

  const SampleType& type() const { return type_; }
  bool is_random() const { return is_random_; }
  std::vector<SampleStep> take() { return std::move(steps_); }

 private:
  using Choose = std::function<PixelBox(const ImageSize&, SampleRng&)>;

  void add_resize(const TransformSpec& spec);
  void add_center_crop(const TransformSpec& spec);
  void add_random_crop(const TransformSpec& spec);
  void add_random_resized_crop(const TransformSpec& spec);
  void add_center_resized_crop(const TransformSpec& spec);
  void add_pad(const TransformSpec& spec);
  void add_horizontal_flip(const TransformSpec& spec);
  void add_color_jitter(const TransformSpec& spec);
  void add_random_erasing(const TransformSpec& spec);
  void add_rescale(const TransformSpec& spec);
  void add_normalize(const TransformSpec& spec);
  void add_to_float(const TransformSpec& spec);
  void add_hwc2chw(const TransformSpec& spec);
  void add_type_cast(const TransformSpec& spec);
  void add_one_hot(const TransformSpec& spec);
  void add_tokenize_bytes(const TransformSpec& spec);

  void require_image(const TransformSpec& spec) const;
  /// Returns whether the height and width are known without reading a sample.
  bool knows_size() const { return type_.shape[0] != kAnySize && type_.shape[1] != kAnySize; }
  ImageSize known_size() const { return {type_.shape[0], type_.shape[1]}; }
  void cut_out(Choose choose, bool stays_inside);
  void resize_to(ElementType from, Resample method, const ImageSize& size, bool may_scale);

  /// The current pass, to which consecutive transforms are added.
  PixelPass& pass();
  void to_f32();
  void add_op(PixelOp op);
  void flush();
  void leave_bytes();
  /// Makes the sample dense, with the layout that it has now. With `own`, its values are also in memory of the chain,
  /// so that steps can change them in place.
  void settle(bool own);
  void push(SampleStep step);

  SampleType type_;
  ChannelOrder layout_ = ChannelOrder::channels_last;
  bool is_random_ = false, is_last_ = false;
  bool may_be_reversed_ = false;
  bool is_written_ = false;  ///< dense, by a step
  std::optional<PixelPass> pass_;
  std::shared_ptr<const ByteMap> byte_map_;
  std::vector<SampleStep> steps_;
};

}  // namespace trainctl
