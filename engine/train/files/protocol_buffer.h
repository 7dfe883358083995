// Writes messages of protocol buffers: a message is a sequence of fields, each a key and a value.
//
//   key    := varint(number * 8 + wire type)
//   varint := bytes of 7 bits each, the lowest bits first; the top bit of a byte is set if another one follows
//
// Source: protobuf.dev/programming-guides/encoding.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are in memory");

template <class T>
void append_number(std::string& to, T value) {
  std::array<char, sizeof value> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  to.append(bytes.data(), bytes.size());
}

/// Fields are numbered as in the .proto files.
class ProtocolBuffer {
 public:
  ProtocolBuffer& integer(uint32_t number, uint64_t value) {
    key(number, kVarint);
    varint(value);
    return *this;
  }
  ProtocolBuffer& f32(uint32_t number, float value) {
    key(number, kFixed32);
    append_number(text_, value);
    return *this;
  }
  ProtocolBuffer& f64(uint32_t number, double value) {
    key(number, kFixed64);
    append_number(text_, value);
    return *this;
  }
  /// `packed`: one field with all values.
  ProtocolBuffer& f64s(uint32_t number, std::span<const double> values) {
    key(number, kBytes);
    varint(values.size_bytes());
    for (const double value : values) append_number(text_, value);
    return *this;
  }
  ProtocolBuffer& bytes(uint32_t number, std::string_view value) {
    key(number, kBytes);
    varint(value.size());
    text_ += value;
    return *this;
  }
  ProtocolBuffer& message(uint32_t number, const ProtocolBuffer& value) { return bytes(number, value.text_); }

  const std::string& text() const { return text_; }

 private:
  enum WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  void key(uint32_t number, WireType type) { varint(number * 8 + type); }

  std::string text_;
};

}  // namespace trainctl
