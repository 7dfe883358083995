// Writes to a terminal or pipe whose reader may stop reading (Ctrl-S, `| less`): a separate thread waits for it, so
// that the training does not.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

namespace trainctl {

class Output {
 public:
  explicit Output(int fd);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  /// Waits as flush() does.
  ~Output();

  /// Returns immediately, unless `fd` is a regular file, which is written directly.
  void write(std::string text);
  /// Returns whether so much output is pending that further lines should be skipped.
  bool is_behind() const;
  /// Returns when everything has been written or the reader is gone.
  void flush();

 private:
  void write_queue();

  const int fd_;
  const bool is_file_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string queue_;
  size_t writing_ = 0;  ///< bytes taken from the queue and being written
  bool ended_ = false, reader_is_gone_ = false;
  std::thread thread_;  ///< started by the first write
};

}  // namespace trainctl
