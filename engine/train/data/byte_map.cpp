// Maps the bytes of a sample, such as pixels, to f32 or bf16: the last transforms of a chain, if they treat every byte
// by itself.
#include "engine/train/data/byte_map.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/graph/half.h"

namespace trainctl {
namespace {

std::vector<float> values_of(const PixelPass& pass, int64_t channels) {
  std::vector<float> values(static_cast<size_t>(channels * ByteTable::kValues));
  for (int64_t c = 0; c < channels; ++c) {
    float* of_channel = values.data() + c * ByteTable::kValues;
    for (int64_t byte = 0; byte < ByteTable::kValues; ++byte) of_channel[byte] = static_cast<float>(byte);
    for (const PixelOp& op : pass.ops) apply(op, c, ByteTable::kValues, of_channel);
  }
  return values;
}

}  // namespace

ByteMap::ByteMap(PixelPass pass, const ImageSize& size, int64_t channels)
    : pass_(std::move(pass)),
      step_(make_pass(pass_)),
      view_{nullptr, size.height, size.width, channels, size.width * channels},
      values_(values_of(pass_, channels)) {
  check(pass_.from == ElementType::u8 && pass_.to == ElementType::f32, "a byte map makes floats of bytes");
}

void ByteMap::load(const void* bytes, DType type, void* to) const {
  if (type == DType::f32) {
    SampleAtWork sample{.view = view_, .box = {}, .decoded = {}};
    sample.view.data = bytes;
    SampleRng none;
    TransformScratch scratch;  // Only a sample that is reversed left to right needs scratch memory.
    return step_.run(sample, static_cast<std::byte*>(to), none, scratch);
  }
  check(is_half(type), "floats of bytes are f32, bf16 or f16");
  const auto* from = static_cast<const uint8_t*>(bytes);
  auto* out = static_cast<uint16_t*>(to);
  const bool from_planes = pass_.from_layout == ChannelOrder::channels_first;
  const bool to_planes = pass_.to_layout == ChannelOrder::channels_first;
  const int64_t pixels = view_.height * view_.width, channels = view_.channels;
  for (int64_t c = 0; c < channels; ++c) {
    uint16_t values[ByteTable::kValues];
    floats_to_halves(type, values_.data() + c * ByteTable::kValues, ByteTable::kValues, values);
    const uint8_t* in = from_planes ? from + c * pixels : from + c;
    uint16_t* at = to_planes ? out + c * pixels : out + c;
    const int64_t in_step = from_planes ? 1 : channels, out_step = to_planes ? 1 : channels;
    for (int64_t p = 0; p < pixels; ++p) at[p * out_step] = values[in[p * in_step]];
  }
}

ByteTable ByteMap::table() const {
  ByteTable table{"",
                  view_.height * view_.width,
                  view_.channels,
                  pass_.from_layout == ChannelOrder::channels_first,
                  pass_.to_layout == ChannelOrder::channels_first,
                  values_};
  const bool same_layout = table.from_planes == table.to_planes;
  const bool same_values = std::all_of(pass_.ops.begin(), pass_.ops.end(),
                                       [](const PixelOp& op) { return op.a.size() == 1 && op.b.size() <= 1; });
  if (same_layout && same_values) {  // then channels do not matter, however many dims the sample has
    table.pixels *= std::exchange(table.channels, 1);
    table.values.resize(static_cast<size_t>(ByteTable::kValues));
  }
  return table;
}

}  // namespace trainctl
