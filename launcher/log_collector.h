// Collects the output of all ranks from their pipes, driven by the launcher's event loop, for the process that writes
// their logs (log_process.h).
//
//   rank ── pipe ──▶ LogCollector ── socket ──▶ log process ──▶ disk
//
// If the disk is slower than the ranks, they wait for it. If it does not answer at all, they do not: their output stays
// in memory, and what is more than that is lost, counted and reported.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/log_pipe.h"
#include "launcher/log_process.h"
#include "launcher/run_directory.h"

namespace trainctl {

class LogCollector {
 public:
  struct Listeners {
    std::function<void(int rank, std::string_view line)> on_line = {};        ///< a line of stdout
    std::function<void(int rank, std::string_view line)> on_error_line = {};  ///< a line of stderr
    std::function<void(const std::string& message)> on_notice =
        {};  ///< for the user: the disk is full or hangs, or no longer
  };

  /// Starts the log process. Raises the limit of open files to what `ranks` ranks need, which is more than the usual
  /// limit if they are many. Throws EnvError.
  LogCollector(boost::asio::io_context& loop, RunDirectory directory, const LogLimits& limits, int ranks,
               Listeners listeners);
  LogCollector(const LogCollector&) = delete;
  LogCollector& operator=(const LogCollector&) = delete;
  ~LogCollector();

  /// The descriptors for a rank's stdout and stderr, open until started(). `restart`: number of restarts so far.
  /// Throws EnvError.
  struct WriteEnds {
    int out, err;
  };
  WriteEnds open(int rank, int restart);
  /// The rank has inherited them; its output is collected from now on.
  void started(int rank);
  /// The rank has ended: its output has been read when this returns.
  void finish(int rank);
  /// The last lines that a rank wrote to stderr since it was opened.
  std::string last_words(int rank, int lines) const;

  /// Call it often: notices a disk that does not answer.
  void watch_disk();
  bool disk_hangs() const { return hangs_; }
  /// All ranks have ended: waits until the logs are written, at most a few seconds longer than the disk answers.
  void end();

  int64_t pending_bytes() const { return process_->pending_bytes(); }
  int log_process() const { return process_->pid(); }

 private:
  struct Stream;

  std::shared_ptr<Stream> open_stream(int rank, const char* name, int restart);
  void start_process();
  void restart_process();
  void watch(const std::shared_ptr<Stream>& stream);
  void readable(const std::shared_ptr<Stream>& stream);
  void rest(const std::shared_ptr<Stream>& stream);
  void put(Stream& stream, std::string_view bytes, int64_t ns);
  bool is_behind() const;
  void reported(const LogReport& report);
  void look_for_trouble(Stream& stream, const LogReport& report);
  void notice(const std::string& message) const;

  boost::asio::io_context& loop_;
  const RunDirectory directory_;
  const LogLimits limits_;
  const Listeners listeners_;
  struct RankStreams {
    std::shared_ptr<Stream> out, err;
  };
  std::map<int, RankStreams> ranks_;
  std::map<uint32_t, std::shared_ptr<Stream>> streams_;  ///< that may still get reports, by number
  uint32_t last_stream_ = 0;
  boost::asio::steady_timer timer_;             ///< runs while streams rest
  std::vector<std::weak_ptr<Stream>> resting_;  ///< drained a moment ago; next visit when the timer expires
  int failing_ = 0;                             ///< streams that cannot be written
  int64_t lost_bytes_ = 0;                      ///< since the last notice
  // A disk that does not answer.
  bool hangs_ = false;
  int64_t dropped_bytes_ = 0;  ///< since it does not answer
  int64_t seen_reports_ = 0;
  double looked_ = 0, silent_seconds_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<LogProcess> process_;
};

}  // namespace trainctl
