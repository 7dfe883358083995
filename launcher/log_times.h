// When the bytes of a log file came. The log itself is the text as the rank wrote it; this stands beside it, so
// that the logs of many ranks can be merged by time:
//
//   times  = magic record*
//   magic  = "trainctl times 1"                16 bytes
//   record = ns:u64 (kind << 56 | value):u64   little endian; ns: since 1970
//
//   kind 0  bytes    the log has `value` bytes, the last of which came at `ns`
//   kind 1  restart  what follows was written after the `value`-th restart of the ranks
//   kind 2  lost     here `value` bytes are missing: they could not be written
//
// restart and lost stand where the bytes before them end. The log may be ahead of its times (the launcher was
// killed between the two), behind them (somebody cut it off), or have none. A reader stops at a record that is cut
// off or of another kind, and takes what follows in the log as if it had come with the last record.
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
/// The first kTimesRecordBytes of `bytes`; nothing where they are fewer, or no record.
std::optional<TimesRecord> decode_times(std::string_view bytes);

/// Reads a times file forward while it grows.
class TimesReader {
 public:
  /// `fd` stays the caller's; -1: there are no times yet.
  explicit TimesReader(int fd = -1) : fd_(fd) {}

  /// The next record, left where it is; null: none now.
  const TimesRecord* peek();
  void pop() { next_.reset(); }

 private:
  int fd_;
  int64_t offset_ = 0;  ///< of what follows buffer_
  std::string buffer_;
  size_t at_ = 0;  ///< in buffer_
  bool began_ = false, broken_ = false;
  std::optional<TimesRecord> next_;
};

}  // namespace trainctl
