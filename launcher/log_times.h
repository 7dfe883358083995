// The arrival times of a log file's bytes, in a file of their own: the log itself is the text as the rank wrote it.
// With them the logs of many ranks can be merged by time:
//
//   times  = magic record*
//   magic  = "trainctl times 1"                16 bytes
//   record = ns:u64 (kind << 56 | value):u64   little endian; ns: since 1970
//
//   kind 0  bytes    the log has `value` bytes, the last of which arrived at `ns`
//   kind 1  restart  the bytes that follow were written after the `value`-th restart of the ranks
//   kind 2  lost     `value` bytes are missing here: they could not be written
//
// restart and lost apply at the end of the bytes before them. The log may be ahead of its times (the launcher was
// killed between the two writes), after them (the log was truncated), or have none. A reader stops at a truncated or
// unknown record, and gives the rest of the log the time of the last valid record.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainctl {

inline constexpr std::string_view kTimesMagic = "trainctl times 1";
inline constexpr size_t kTimesRecordBytes = 16;

struct TimesRecord {
  enum class Kind : uint8_t { bytes, restart, lost };
  Kind kind = Kind::bytes;
  int64_t ns = 0;
  int64_t value = 0;  ///< 0 .. 2^56 - 1
  friend bool operator==(const TimesRecord&, const TimesRecord&) = default;
};

std::string encode(const TimesRecord& record);
/// Decodes the first kTimesRecordBytes of `bytes`; nullopt if they are fewer, or no record.
std::optional<TimesRecord> decode_times(std::string_view bytes);

/// Reads a times file forward while it grows.
class TimesReader {
 public:
  /// The caller owns `fd`; -1: there are no times yet.
  explicit TimesReader(int fd = -1) : fd_(fd) {}

  /// The next record, without consuming it; null: none for now.
  const TimesRecord* peek();
  void pop() { next_.reset(); }

 private:
  int fd_;
  int64_t offset_ = 0;  ///< file offset of the end of buffer_
  std::string buffer_;
  size_t at_ = 0;  ///< read position in buffer_
  bool began_ = false, broken_ = false;
  std::optional<TimesRecord> next_;
};

}  // namespace trainctl
