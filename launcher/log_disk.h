// The ranks' output, on its way to the disk of this host through the process that writes their logs (log_process.h).
//
// If the disk is slower than the ranks, they wait for it. If it does not answer at all, they do not: their output stays
// in memory, and what is more than that is lost, counted and reported.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "launcher/log_process.h"
#include "launcher/log_sink.h"
#include "launcher/run_directory.h"

namespace trainctl {

class LogDisk : public LogSink {
 public:
  /// Starts the log process. `on_notice`: for the user: the disk is full or hangs, or no longer. Throws EnvError.
  LogDisk(boost::asio::io_context& loop, RunDirectory directory, const LogLimits& limits,
          std::function<void(const std::string& message)> on_notice);
  LogDisk(const LogDisk&) = delete;
  LogDisk& operator=(const LogDisk&) = delete;

  void open(uint32_t stream, int rank, bool is_error, int restart) override;
  void write(uint32_t stream, std::string_view bytes, int64_t ns) override;
  void close(uint32_t stream) override;
  bool is_full() const override { return is_behind() && !hangs_; }

  /// Call it often: notices a disk that does not answer.
  void look();
  bool hangs() const { return hangs_; }
  /// All ranks have ended: waits until the logs are written, at most a few seconds longer than the disk answers.
  void end();

  int64_t pending_bytes() const { return process_->pending_bytes(); }
  int log_process() const { return process_->pid(); }

 private:
  struct Stream {
    LogFiles files;
    bool finished = false, failing = false;
    int64_t lost_before = 0;
    int64_t dropped = 0;  ///< bytes that the log process has not been told of
    bool dropped_mid_line = false;
  };

  void start_process();
  void restart_process();
  bool is_behind() const;
  void reported(const LogReport& report);
  void look_for_trouble(Stream& stream, const LogReport& report);

  boost::asio::io_context& loop_;
  const RunDirectory directory_;
  const LogLimits limits_;
  const std::function<void(const std::string& message)> on_notice_;
  std::map<uint32_t, Stream> streams_;  ///< that may still get reports, by number
  int failing_ = 0;                     ///< streams that cannot be written
  int64_t lost_bytes_ = 0;              ///< since the last notice
  // A disk that does not answer.
  bool hangs_ = false;
  int64_t dropped_bytes_ = 0;  ///< since it does not answer
  int64_t seen_reports_ = 0;
  double looked_ = 0, silent_seconds_ = 0;
  std::unique_ptr<LogProcess> process_;
};

}  // namespace trainctl
