// A source of samples: it knows which bytes belong to which sample. It neither decodes images nor transforms anything.
//
//   Source -> read -> decode -> transforms of a sample -> batch -> device block
//
// All samples of a set have the same named fields ("image", "label", "mask").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/shape.h"

namespace trainctl {

enum class ElementType : uint8_t { u8, u16, i32, i64, f32, bf16 };

constexpr int64_t byte_size(ElementType type) {
  switch (type) {
    case ElementType::u8:
      return 1;
    case ElementType::u16:
    case ElementType::bf16:
      return 2;
    case ElementType::i64:
      return 8;
    default:
      return 4;
  }
}
constexpr std::string_view to_string(ElementType type) {
  constexpr std::string_view kNames[] = {"u8", "u16", "i32", "i64", "f32", "bf16"};
  return kNames[static_cast<size_t>(type)];
}

/// array: elements of `type`, row-major, little-endian, of `shape`. image: a JPEG or PNG file; its size is known once
/// it is decoded, to u8 [h, w, c].
enum class Encoding : uint8_t { array, image };

struct SourceField {
  std::string name;
  Encoding encoding = Encoding::array;
  ElementType type = ElementType::u8;
  Shape shape;  ///< shape of one sample; empty for a scalar, and for an image; [-1] for bytes of any length (a text)
};

/// The bytes of one field of one sample. A worker reuses it, so it grows to the largest field.
using FieldBytes = std::vector<std::byte>;

class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  virtual const std::vector<SourceField>& fields() const = 0;
  /// Reads the fields whose entry of `wanted` is true, each into its entry of `out`; both have fields().size() entries.
  /// Any number of threads may call it at once. Throws EnvError, which names the file and what is wrong with it.
  virtual void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const = 0;
  /// Same as Dataset::expect. EnvError is ignored: read() throws it again.
  virtual void expect(int64_t) const {}
  /// Describes the origin of a sample, for errors: "photos/cat/12.jpg", "shard-03.tar: 000123.jpg", "ratings.csv: row
  /// 900,001".
  virtual std::string where(int64_t sample) const = 0;
  /// Bytes of memory that the opened source takes in each rank.
  virtual int64_t memory_bytes() const = 0;
  /// Names of classes (folders, a column of words), by number; empty if classes have no names.
  virtual const std::vector<std::string>& class_names() const = 0;
};

}  // namespace trainctl
