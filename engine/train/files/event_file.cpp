// TensorBoard's event files, written by hand: a dozen messages of protocol buffers do not need a library of them.
#include "engine/train/files/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <boost/crc.hpp>
#include <chrono>

#include "engine/train/files/protocol_buffer.h"

namespace trainctl {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

uint32_t masked_crc32c(std::string_view data) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data.data(), data.size());
  return std::rotr(static_cast<uint32_t>(crc.checksum()), 15) + 0xa282ead8U;
}

// Numbers of fields.
namespace event {
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr uint32_t kValue = 1;
}
namespace value {
constexpr uint32_t kTag = 1, kSimpleValue = 2, kHistogram = 5, kTensor = 8, kMetadata = 9;
}
namespace metadata {
constexpr uint32_t kPluginData = 1, kPluginName = 1, kContent = 2;  // the latter two are fields of the first
}
namespace tensor {
constexpr uint32_t kDType = 1, kShape = 2, kStringValue = 8;
constexpr uint64_t kEventFloat = 1, kString = 7;  // DT_FLOAT, DT_STRING
}  // namespace tensor
namespace histogram {
constexpr uint32_t kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumOfSquares = 5, kLimit = 6, kCount = 7;
}
namespace hparams {
constexpr uint32_t kStart = 3, kEnd = 4;                // HParamsPluginData; its version 0 is the default
constexpr uint32_t kParameters = 1, kStartTime = 5;     // SessionStartInfo
constexpr uint32_t kKey = 1, kValue = 2;                // an entry of a map
constexpr uint32_t kNumber = 2, kText = 3, kTruth = 4;  // google.protobuf.Value
constexpr uint32_t kStatus = 1, kEndTime = 2;           // SessionEndInfo
constexpr uint64_t kSuccess = 1, kFailure = 2;          // Status
}  // namespace hparams

ProtocolBuffer event_at(int64_t step) {
  return ProtocolBuffer().f64(event::kWallTime, now()).integer(event::kStep, static_cast<uint64_t>(step));
}

ProtocolBuffer metadata_of(std::string_view plugin, std::string_view content = "") {
  ProtocolBuffer data;
  data.bytes(metadata::kPluginName, plugin);
  if (!content.empty()) data.bytes(metadata::kContent, content);
  return ProtocolBuffer().message(metadata::kPluginData, data);
}

ProtocolBuffer value_of(const HyperParameter::Value& value) {
  ProtocolBuffer message;
  if (const auto* truth = std::get_if<bool>(&value)) message.integer(hparams::kTruth, *truth ? 1 : 0);
  if (const auto* number = std::get_if<double>(&value)) message.f64(hparams::kNumber, *number);
  if (const auto* text = std::get_if<std::string>(&value)) message.bytes(hparams::kText, *text);
  return message;
}

std::string file_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return "events.out.tfevents." + std::to_string(static_cast<int64_t>(now())) + "." +
         (host[0] == '\0' ? "localhost" : host.data()) + "." + std::to_string(getpid());
}

}  // namespace

std::string event_record(std::string_view event) {
  std::string length;
  append_number(length, static_cast<uint64_t>(event.size()));
  std::string record = length;
  append_number(record, masked_crc32c(length));
  record += event;
  append_number(record, masked_crc32c(event));
  return record;
}

EventFile::EventFile(const std::string& folder) : file_(folder + "/" + file_name()) {
  write_event(event_at(0).bytes(event::kFileVersion, "brain.Event:2").text());
}

void EventFile::write(int64_t step, const EventScalars& scalars) {
  if (!is_open() || scalars.empty()) return;
  ProtocolBuffer values;
  for (const auto& [tag, number] : scalars) {
    values.message(summary::kValue,
                   ProtocolBuffer().bytes(value::kTag, tag).f32(value::kSimpleValue, static_cast<float>(number)));
  }
  write_event(event_at(step).message(event::kSummary, values).text());
}

void EventFile::write_text(const std::string& tag, const std::string& text) {
  if (!is_open()) return;
  const ProtocolBuffer content = ProtocolBuffer()
                                     .integer(tensor::kDType, tensor::kString)
                                     .bytes(tensor::kShape, "")
                                     .bytes(tensor::kStringValue, text);
  write_value(0, ProtocolBuffer()
                     .bytes(value::kTag, tag)
                     .message(value::kTensor, content)
                     .message(value::kMetadata, metadata_of("text")));
}

void EventFile::write_histograms(int64_t step, const std::map<std::string, Histogram>& histograms) {
  if (!is_open() || histograms.empty()) return;
  ProtocolBuffer values;
  for (const auto& [tag, h] : histograms) {
    std::vector<double> limits, counts;
    for (const Histogram::Bucket& bucket : h.buckets()) {
      limits.push_back(bucket.limit);
      counts.push_back(static_cast<double>(bucket.count));
    }
    const ProtocolBuffer content = ProtocolBuffer()
                                       .f64(histogram::kMin, h.min())
                                       .f64(histogram::kMax, h.max())
                                       .f64(histogram::kNum, static_cast<double>(h.count()))
                                       .f64(histogram::kSum, h.sum())
                                       .f64(histogram::kSumOfSquares, h.sum_of_squares())
                                       .f64s(histogram::kLimit, limits)
                                       .f64s(histogram::kCount, counts);
    values.message(summary::kValue, ProtocolBuffer().bytes(value::kTag, tag).message(value::kHistogram, content));
  }
  write_event(event_at(step).message(event::kSummary, values).text());
}

void EventFile::write_session_start(const std::vector<HyperParameter>& parameters) {
  ProtocolBuffer start;
  for (const HyperParameter& parameter : parameters) {
    start.message(
        hparams::kParameters,
        ProtocolBuffer().bytes(hparams::kKey, parameter.name).message(hparams::kValue, value_of(parameter.value)));
  }
  start.f64(hparams::kStartTime, now());
  write_session("_hparams_/session_start_info", ProtocolBuffer().message(hparams::kStart, start).text());
}

void EventFile::write_session_end(bool is_success) {
  const ProtocolBuffer end = ProtocolBuffer()
                                 .integer(hparams::kStatus, is_success ? hparams::kSuccess : hparams::kFailure)
                                 .f64(hparams::kEndTime, now());
  write_session("_hparams_/session_end_info", ProtocolBuffer().message(hparams::kEnd, end).text());
}

/// Writes a tensor without a value, since a reader expects one: the content is in the metadata.
void EventFile::write_session(const std::string& tag, const std::string& content) {
  if (!is_open()) return;
  const ProtocolBuffer none = ProtocolBuffer().integer(tensor::kDType, tensor::kEventFloat).bytes(tensor::kShape, "");
  write_value(0, ProtocolBuffer()
                     .bytes(value::kTag, tag)
                     .message(value::kTensor, none)
                     .message(value::kMetadata, metadata_of("hparams", content)));
}

void EventFile::write_value(int64_t step, const ProtocolBuffer& value) {
  write_event(event_at(step).message(event::kSummary, ProtocolBuffer().message(summary::kValue, value)).text());
}

void EventFile::write_event(const std::string& event) { file_.write(event_record(event)); }

}  // namespace trainctl
