// Passes the ranks' output to the disk of this host through the process that writes their logs (log_process.h).
//
// If the disk is slower than the ranks, they wait for it. If it does not respond at all, they do not wait: their output
// stays in memory, and output beyond a limit is lost, counted and reported.
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
  /// Starts the log process. `on_notice` receives lines for the user about a full or hanging disk. Throws EnvError.
  LogDisk(boost::asio::io_context& loop, RunDirectory directory, const LogLimits& limits,
          std::function<void(const std::string& message)> on_notice);
  LogDisk(const LogDisk&) = delete;
  LogDisk& operator=(const LogDisk&) = delete;

  void open(uint32_t stream, int rank, bool is_error, int restart) override;
  void write(uint32_t stream, std::string_view bytes, int64_t ns) override;
  void close(uint32_t stream) override;
  bool is_full() const override { return is_behind() && !hangs_; }

  /// Call it often: detects a disk that does not respond.
  void look();
  bool hangs() const { return hangs_; }
  /// Called after all ranks have ended: waits until the logs are written, but only a few seconds without progress.
  void end();

  int64_t pending_bytes() const { return process_->pending_bytes(); }
  int log_process() const { return process_->pid(); }

 private:
  struct Stream {
    LogFiles files;
    bool finished = false, failing = false;
    int64_t lost_before = 0;
    int64_t dropped = 0;  ///< dropped bytes not yet reported to the log process
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
  std::map<uint32_t, Stream> streams_;  ///< streams that may still receive reports, by number
  int failing_ = 0;                     ///< number of streams that cannot be written
  int64_t lost_bytes_ = 0;              ///< bytes lost since the last notice
  // State of a disk that does not respond.
  bool hangs_ = false;
  int64_t dropped_bytes_ = 0;  ///< bytes dropped since the disk stopped responding
  int64_t seen_reports_ = 0;
  double looked_ = 0, silent_seconds_ = 0;
  std::unique_ptr<LogProcess> process_;
};

}  // namespace trainctl
