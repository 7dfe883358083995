// Copies the output of all ranks from their pipes to their logs, driven by the launcher's event loop.
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
#include "launcher/run_directory.h"

namespace trainctl {

class LogCollector {
 public:
  struct Listeners {
    std::function<void(int rank, std::string_view line)> on_line = {};        ///< a line of stdout
    std::function<void(int rank, std::string_view line)> on_error_line = {};  ///< a line of stderr
    std::function<void(const std::string& message)> on_notice =
        {};  ///< for the user: the disk is full, or no longer full
  };

  /// Raises the limit of open files to what `ranks` ranks need, which is more than the usual limit if they are many.
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
  /// The rank has ended: its output is in its logs when this returns.
  void finish(int rank);

 private:
  struct Stream;

  std::shared_ptr<Stream> open_stream(int rank, const char* name, int restart);
  void watch(const std::shared_ptr<Stream>& stream);
  void readable(const std::shared_ptr<Stream>& stream);
  void rest(const std::shared_ptr<Stream>& stream);
  void look_for_trouble(Stream& stream, bool finished);
  void notice(const std::string& message) const;

  boost::asio::io_context& loop_;
  const RunDirectory directory_;
  const LogLimits limits_;
  const Listeners listeners_;
  struct RankStreams {
    std::shared_ptr<Stream> out, err;
  };
  std::map<int, RankStreams> ranks_;
  boost::asio::steady_timer timer_;             ///< runs while streams rest
  std::vector<std::weak_ptr<Stream>> resting_;  ///< drained a moment ago; next visit when the timer expires
  int failing_ = 0;                             ///< streams that cannot be written
  int64_t lost_bytes_ = 0;                      ///< since the last notice
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace trainctl
