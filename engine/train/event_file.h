// TensorBoard's event files: what `tensorboard --logdir log_output` draws.
//
//   events.out.tfevents.<seconds since 1970>.<host>.<pid>
//
// A file is a sequence of records; a record holds one protocol buffer, tensorflow.Event:
//
//   record := length: u64, crc(length): u32, event: length bytes, crc(event): u32     little-endian
//   crc(x) := rotate_right(crc32c(x), 15) + 0xa282ead8
//
// Source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto and framework/summary.proto.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainctl {

/// A tag and its value: {"train/loss", 0.25}. What stands before the first '/' is the group that TensorBoard draws it
/// in.
using EventScalars = std::vector<std::pair<std::string, double>>;

class EventFile {
 public:
  EventFile() = default;
  /// Makes a file in `folder`. If that fails, nothing is written: what it would hold is in metrics.jsonl too.
  explicit EventFile(const std::string& folder);

  bool is_open() const { return file_.is_open(); }
  /// One event, at the time of the call. Values are kept as f32; nan and infinite ones are.
  void write(int64_t step, const EventScalars& scalars);
  /// Markdown, drawn under TEXT.
  void write_text(const std::string& tag, const std::string& text);

 private:
  void write_event(std::string event);

  std::ofstream file_;
};

/// A record around `event`.
std::string event_record(std::string_view event);

}  // namespace trainctl
