// Text on its way to a terminal or a pipe, whose reader may stop reading (Ctrl-S, `| less`): a thread of its own
// waits for it, so that the training does not.
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

  /// Returns at once, but where `fd` is a file on a disk: that has no reader.
  void write(std::string text);
  /// So much waits to be read that more should be left out.
  bool is_behind() const;
  /// Returns when all was written, or the reader is gone.
  void flush();

 private:
  void write_queue();

  const int fd_;
  const bool is_file_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string queue_;
  size_t writing_ = 0;  ///< bytes that were taken from the queue and are being written
  bool ended_ = false, reader_is_gone_ = false;
  std::thread thread_;  ///< from the first write on
};

}  // namespace trainctl
