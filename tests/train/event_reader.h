// Reads TensorBoard's event files as TensorBoard's own reader does, for the tests. Checks both checksums of each
// record.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

struct ReadHistogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> limits, counts;
};

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::map<std::string, float> scalars;
  std::map<std::string, std::string> texts;
  std::map<std::string, ReadHistogram> histograms;
  std::map<std::string, std::string> hparams;  ///< by tag: the plug-in's message
};

namespace event_reader {

/// Computes the CRC-32C bit by bit from its polynomial, independently of the tested code.
inline uint32_t crc32c(std::string_view data) {
  uint32_t crc = ~0U;
  for (const char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

inline uint32_t masked(std::string_view data) {
  const uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

class Message {
 public:
  explicit Message(std::string_view text) : text_(text) {}
  bool next() {
    if (text_.empty()) return false;
    const uint64_t key = varint();
    number = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        integer = varint();
        break;
      case 1:
        bytes = take(8);
        break;
      case 2:
        bytes = take(varint());
        break;
      case 5:
        bytes = take(4);
        break;
      default:
        throw std::runtime_error("an unknown wire type");
    }
    return true;
  }
  template <class T>
  T as() const {
    T value{};
    if (bytes.size() != sizeof value) throw std::runtime_error("a number of another size");
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  int number = 0;
  uint64_t integer = 0;
  std::string_view bytes;

 private:
  std::string_view take(uint64_t size) {
    if (size > text_.size()) throw std::runtime_error("a field beyond the end");
    const std::string_view taken = text_.substr(0, size);
    text_.remove_prefix(size);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view text_;
};

inline std::vector<double> numbers(std::string_view packed) {
  std::vector<double> values(packed.size() / sizeof(double));
  std::memcpy(values.data(), packed.data(), values.size() * sizeof(double));
  return values;
}

inline ReadHistogram read_histogram(std::string_view text) {
  ReadHistogram h;
  for (Message field(text); field.next();) {
    if (field.number == 1) h.min = field.as<double>();
    if (field.number == 2) h.max = field.as<double>();
    if (field.number == 3) h.count = field.as<double>();
    if (field.number == 4) h.sum = field.as<double>();
    if (field.number == 5) h.sum_of_squares = field.as<double>();
    if (field.number == 6) h.limits = numbers(field.bytes);
    if (field.number == 7) h.counts = numbers(field.bytes);
  }
  return h;
}

/// The content of a value's plug-in data, if the data belong to that plug-in.
inline std::string content_for(std::string_view plugin, std::string_view metadata) {
  std::string name, content;
  for (Message field(metadata); field.next();)
    if (field.number == 1)
      for (Message data(field.bytes); data.next();) (data.number == 1 ? name : content) = data.bytes;
  return name == plugin ? content : "";
}

inline void read_value(std::string_view text, ReadEvent& event) {
  std::string tag, of_tensor, of_hparams;
  float scalar = 0;
  bool is_scalar = false;
  for (Message field(text); field.next();) {
    if (field.number == 1) tag = field.bytes;
    if (field.number == 2) scalar = field.as<float>(), is_scalar = true;
    if (field.number == 5) event.histograms[tag] = read_histogram(field.bytes);
    if (field.number == 9) of_hparams = content_for("hparams", field.bytes);
    if (field.number == 8)
      for (Message tensor(field.bytes); tensor.next();)
        if (tensor.number == 8) of_tensor = tensor.bytes;
  }
  if (is_scalar)
    event.scalars[tag] = scalar;
  else if (!of_hparams.empty())
    event.hparams[tag] = of_hparams;
  else if (!event.histograms.contains(tag))
    event.texts[tag] = of_tensor;
}

inline ReadEvent read_event(std::string_view text) {
  ReadEvent event;
  for (Message field(text); field.next();) {
    if (field.number == 1) event.wall_time = field.as<double>();
    if (field.number == 2) event.step = static_cast<int64_t>(field.integer);
    if (field.number == 3) event.file_version = field.bytes;
    if (field.number == 5)
      for (Message summary(field.bytes); summary.next();)
        if (summary.number == 1) read_value(summary.bytes, event);
  }
  return event;
}

}  // namespace event_reader

/// Reads all events of a file. Throws if a record is cut off, or if a checksum is wrong.
inline std::vector<ReadEvent> read_events(std::string_view file) {
  const auto number = [&](size_t at, auto value) {
    if (at + sizeof value > file.size()) throw std::runtime_error("a record is cut off");
    std::memcpy(&value, file.data() + at, sizeof value);
    return value;
  };
  std::vector<ReadEvent> events;
  for (size_t at = 0; at < file.size();) {
    const auto size = number(at, uint64_t{0});
    if (number(at + 8, uint32_t{0}) != event_reader::masked(file.substr(at, 8)))
      throw std::runtime_error("the sum of a length is wrong");
    const auto sum = number(at + 12 + size, uint32_t{0});
    const std::string_view event = file.substr(at + 12, size);
    if (sum != event_reader::masked(event)) throw std::runtime_error("the sum of an event is wrong");
    events.push_back(event_reader::read_event(event));
    at += size + 16;
  }
  return events;
}
