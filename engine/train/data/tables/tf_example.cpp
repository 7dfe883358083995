// tf.Example, the message of protocol buffers in which TFRecord files store samples.
#include "engine/train/data/tables/tf_example.h"

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr size_t kMostTfFeatures = 4096;

[[noreturn]] void fail_message(const char* what) {
  throw EnvError(std::string("is not a tf.Example: ") + what + "; trainctl reads TFRecord files of tf.Example");
}

/// Fields of one message: number, wire type and value.
class TfMessage {
 public:
  explicit TfMessage(std::string_view bytes) : rest_(bytes) {}

  /// Moves to the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    number_ = tag >> 3;
    wire_ = static_cast<uint32_t>(tag & 7);
    value_ = {};
    switch (wire_) {
      case 0:
        integer_ = varint();
        return true;
      case 1:
        value_ = take(8);
        return true;
      case 2:
        value_ = take(varint());
        return true;
      case 5:
        value_ = take(4);
        return true;
      default:
        fail_message("a field has an unknown type");
    }
  }
  uint64_t number() const { return number_; }
  bool is_bytes(uint64_t number) const { return number_ == number && wire_ == 2; }
  std::string_view value() const { return value_; }
  uint64_t integer() const { return integer_; }
  uint32_t wire() const { return wire_; }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) fail_message("a number is truncated");
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return value;
    }
    fail_message("a number has more than 64 bits");
  }
  bool is_empty() const { return rest_.empty(); }

 private:
  std::string_view take(uint64_t bytes) {
    if (bytes > rest_.size()) fail_message("a value is truncated");
    const std::string_view value = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return value;
  }

  std::string_view rest_, value_;
  uint64_t number_ = 0, integer_ = 0;
  uint32_t wire_ = 0;
};

void append_floats(std::string_view bytes, std::vector<float>& out) {
  if (bytes.size() % sizeof(float) != 0) fail_message("a list of floats has no whole number of them");
  const size_t at = out.size();
  out.resize(at + bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(out.data() + at, bytes.data(), bytes.size());
}

void read_list(std::string_view list, TfFeature& feature) {
  for (TfMessage values(list); values.next();) {
    if (values.number() != 1) continue;
    if (feature.kind == TfKind::bytes && values.wire() == 2) feature.bytes.push_back(values.value());
    if (feature.kind == TfKind::floats && (values.wire() == 2 || values.wire() == 5))
      append_floats(values.value(), feature.floats);
    if (feature.kind == TfKind::integers && values.wire() == 0)
      feature.integers.push_back(static_cast<int64_t>(values.integer()));
    if (feature.kind == TfKind::integers && values.wire() == 2)
      for (TfMessage packed(values.value()); !packed.is_empty();)
        feature.integers.push_back(static_cast<int64_t>(packed.varint()));
  }
}

TfFeature read_feature(std::string_view entry) {
  TfFeature feature;
  for (TfMessage fields(entry); fields.next();) {
    if (fields.is_bytes(1)) feature.name = fields.value();
    if (!fields.is_bytes(2)) continue;
    for (TfMessage value(fields.value()); value.next();) {
      if (value.wire() != 2 || value.number() < 1 || value.number() > 3) continue;
      const auto kind = static_cast<TfKind>(value.number());
      if (kind != feature.kind) {  // the last member of a oneof counts
        feature.bytes.clear();
        feature.floats.clear();
        feature.integers.clear();
      }
      feature.kind = kind;
      read_list(value.value(), feature);
    }
  }
  return feature;
}

}  // namespace

std::vector<TfFeature> parse_tf_example(std::span<const uint8_t> message) {
  std::vector<TfFeature> features;
  for (TfMessage example({reinterpret_cast<const char*>(message.data()), message.size()}); example.next();) {
    if (example.is_bytes(2)) fail_message("it is a tf.SequenceExample");
    if (!example.is_bytes(1)) continue;
    for (TfMessage entries(example.value()); entries.next();) {
      if (!entries.is_bytes(1)) continue;
      TfFeature feature = read_feature(entries.value());
      const auto known = std::find_if(features.begin(), features.end(),
                                      [&](const TfFeature& other) { return other.name == feature.name; });
      if (known != features.end())
        *known = std::move(feature);
      else
        features.push_back(std::move(feature));
      if (features.size() > kMostTfFeatures) fail_message("it has too many features");
    }
  }
  return features;
}

}  // namespace trainctl
