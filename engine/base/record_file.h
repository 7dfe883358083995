// A file that grows by whole records while it is read by others: lines of JSON, records of TensorBoard.
//
// A full disk is often full for a moment only. Records that cannot be written are kept in memory, up to a bound, and
// written before the next ones. No record is ever in the file in part, except while a process dies.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace trainctl {

class RecordFile {
 public:
  enum class Begin : uint8_t { empty, append };

  /// Writes nothing.
  RecordFile() = default;
  /// The file is created now, or with a later record if that fails.
  explicit RecordFile(std::string path, Begin begin = Begin::empty);
  ~RecordFile();  ///< tries once more to write what is kept
  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&& other) noexcept;

  bool is_open() const { return !path_.empty(); }
  /// Returns whether the file has this record and all before it, except lost ones.
  bool write(std::string_view record);
  /// Records that are kept, and records that were dropped because too many were kept.
  size_t kept() const { return kept_.size(); }
  int64_t lost() const { return lost_; }
  /// Returns why the last record could not be written; "" if it was.
  const std::string& problem() const { return problem_; }

  static constexpr size_t kMostKeptBytes = size_t{4} << 20;

 private:
  bool flush();
  bool open();
  bool put(std::string_view record);
  void fail(int error);
  void close();

  std::string path_;
  Begin begin_ = Begin::empty;
  int fd_ = -1;
  std::deque<std::string> kept_;
  size_t kept_bytes_ = 0;
  int64_t lost_ = 0;
  std::string problem_;
};

}  // namespace trainctl
