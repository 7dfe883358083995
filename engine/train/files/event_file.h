// TensorBoard's event files: what `tensorboard --logdir log_output` draws.
//
//   events.out.tfevents.<seconds since 1970>.<host>.<pid>
//
// A file is a sequence of records; a record holds one protocol buffer, tensorflow.Event:
//
//   record := length: u64, crc(length): u32, event: length bytes, crc(event): u32     little-endian
//   crc(x) := rotate_right(crc32c(x), 15) + 0xa282ead8
//
// Source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto and framework/summary.proto;
// tensorboard/plugins/hparams/plugin_data.proto.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/record_file.h"
#include "engine/train/files/histogram.h"

namespace trainctl {

/// A tag and its value: {"train/loss", 0.25}. The part before the first '/' is the group in which TensorBoard shows it.
using EventScalars = std::vector<std::pair<std::string, double>>;

/// One of the settings by which HPARAMS distinguishes runs: {"optimizer.learning_rate", 0.1}.
struct HyperParameter {
  using Value = std::variant<bool, double, std::string>;
  std::string name;
  Value value;
};

class ProtocolBuffer;

class EventFile {
 public:
  EventFile() = default;
  /// Makes a file in `folder`, now or with a later event. What is lost to a full disk (record_file.h) is not reported:
  /// metrics.jsonl has the same numbers.
  explicit EventFile(const std::string& folder);

  bool is_open() const { return file_.is_open(); }
  /// One event, at the time of the call. Values are kept as f32; nan and infinite ones are.
  void write(int64_t step, const EventScalars& scalars);
  /// Writes histograms by tag, which TensorBoard draws under HISTOGRAMS and DISTRIBUTIONS.
  void write_histograms(int64_t step, const std::map<std::string, Histogram>& histograms);
  /// Markdown, drawn under TEXT.
  void write_text(const std::string& tag, const std::string& text);
  /// A row under HPARAMS, whose metrics are the scalars of the same folder. Without an end the run counts as active.
  void write_session_start(const std::vector<HyperParameter>& parameters);
  void write_session_end(bool is_success);

 private:
  void write_session(const std::string& tag, const std::string& content);
  void write_value(int64_t step, const ProtocolBuffer& value);
  void write_event(const std::string& event);

  RecordFile file_;
};

/// A record around `event`.
std::string event_record(std::string_view event);

}  // namespace trainctl
