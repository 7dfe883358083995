// tf.Example, the message of protocol buffers in which TFRecord files store samples:
//
//   Example   := 1: Features                Features  := 1: {1: name, 2: Feature}*
//   Feature   := 1: BytesList | 2: FloatList | 3: Int64List
//   BytesList := 1: bytes*                  FloatList := 1: f32* (packed or not)     Int64List := 1: varint* (the same)
//
// Values refer to the bytes of the message.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trainctl {

enum class TfKind : uint8_t { none, bytes, floats, integers };

struct TfFeature {
  std::string_view name;
  TfKind kind = TfKind::none;
  std::vector<std::string_view> bytes;
  std::vector<float> floats;
  std::vector<int64_t> integers;

  size_t size() const { return bytes.size() + floats.size() + integers.size(); }
};

/// The features in the order of the message; if a name occurs twice, the last one counts. Throws EnvError, without the
/// file and position, if the bytes are not such a message.
std::vector<TfFeature> parse_tf_example(std::span<const uint8_t> message);

}  // namespace trainctl
