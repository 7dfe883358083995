// TensorBoard's event files, written by hand: four messages of protocol buffers do not need a library of them.
#include "engine/train/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <boost/crc.hpp>
#include <chrono>
#include <cstring>

namespace trainctl {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are in memory");

template <class T>
void append(std::string& to, T value) {
  std::array<char, sizeof value> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  to.append(bytes.data(), bytes.size());
}

uint32_t masked_crc32c(std::string_view data) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data.data(), data.size());
  return std::rotr(static_cast<uint32_t>(crc.checksum()), 15) + 0xa282ead8U;
}

// Protocol buffers: a field is a key, number * 8 + wire type, and its value.
enum WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}
void key(std::string& to, uint32_t number, WireType type) { varint(to, number * 8 + type); }
void bytes_field(std::string& to, uint32_t number, std::string_view value) {
  key(to, number, kBytes);
  varint(to, value.size());
  to += value;
}
void varint_field(std::string& to, uint32_t number, uint64_t value) {
  key(to, number, kVarint);
  varint(to, value);
}

// Numbers of fields.
namespace event {
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr uint32_t kValue = 1;
}
namespace value {
constexpr uint32_t kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
}
namespace metadata {
constexpr uint32_t kPluginData = 1, kPluginName = 1;  // the second is a field of the first
}
namespace tensor {
constexpr uint32_t kDType = 1, kShape = 2, kStringValue = 8;
constexpr uint64_t kString = 7;  // DT_STRING
}  // namespace tensor

std::string event_at(int64_t step) {
  std::string event;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  key(event, event::kWallTime, kFixed64);
  append(event, std::chrono::duration<double>(now).count());
  varint_field(event, event::kStep, static_cast<uint64_t>(step));
  return event;
}

std::string file_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return "events.out.tfevents." + std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count()) + "." +
         (host[0] == '\0' ? "localhost" : host.data()) + "." + std::to_string(getpid());
}

}  // namespace

std::string event_record(std::string_view event) {
  std::string length;
  append(length, static_cast<uint64_t>(event.size()));
  std::string record = length;
  append(record, masked_crc32c(length));
  record += event;
  append(record, masked_crc32c(event));
  return record;
}

EventFile::EventFile(const std::string& folder) : file_(folder + "/" + file_name(), std::ios::binary) {
  std::string first = event_at(0);
  bytes_field(first, event::kFileVersion, "brain.Event:2");
  write_event(std::move(first));
}

void EventFile::write(int64_t step, const EventScalars& scalars) {
  if (!is_open() || scalars.empty()) return;
  std::string values;
  for (const auto& [tag, number] : scalars) {
    std::string one;
    bytes_field(one, value::kTag, tag);
    key(one, value::kSimpleValue, kFixed32);
    append(one, static_cast<float>(number));
    bytes_field(values, summary::kValue, one);
  }
  std::string event = event_at(step);
  bytes_field(event, event::kSummary, values);
  write_event(std::move(event));
}

void EventFile::write_text(const std::string& tag, const std::string& text) {
  if (!is_open()) return;
  std::string plugin, about, content, one, values;
  bytes_field(plugin, metadata::kPluginName, "text");
  bytes_field(about, metadata::kPluginData, plugin);
  varint_field(content, tensor::kDType, tensor::kString);
  bytes_field(content, tensor::kShape, "");
  bytes_field(content, tensor::kStringValue, text);
  bytes_field(one, value::kTag, tag);
  bytes_field(one, value::kTensor, content);
  bytes_field(one, value::kMetadata, about);
  bytes_field(values, summary::kValue, one);
  std::string event = event_at(0);
  bytes_field(event, event::kSummary, values);
  write_event(std::move(event));
}

/// Whole records, at once: a reader may follow the file while it grows.
void EventFile::write_event(std::string event) {
  const std::string record = event_record(event);
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  file_.flush();
}

}  // namespace trainctl
