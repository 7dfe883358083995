// Carries what all ranks write from their pipes to their logs, as events of the launcher's loop.
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
    std::function<void(int rank, std::string_view line)> on_line = {};        ///< of stdout
    std::function<void(int rank, std::string_view line)> on_error_line = {};  ///< of stderr
    std::function<void(const std::string& message)> on_notice = {};  ///< for the user: a disk is full, or no longer
  };

  /// A launcher with many ranks has more files open than processes usually may: `ranks` says how many to allow for.
  LogCollector(boost::asio::io_context& loop, RunDirectory directory, const LogLimits& limits, int ranks,
               Listeners listeners);
  LogCollector(const LogCollector&) = delete;
  LogCollector& operator=(const LogCollector&) = delete;
  ~LogCollector();

  /// What a rank is to have as its stdout and stderr, until started(). `restart`: of the ranks, 0 at first. Throws
  /// EnvError.
  struct WriteEnds {
    int out, err;
  };
  WriteEnds open(int rank, int restart);
  /// The rank has them; what it writes is collected from now on.
  void started(int rank);
  /// The rank has ended: what it wrote is in its logs when this returns.
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
  boost::asio::steady_timer timer_;             ///< runs while there are resting ones
  std::vector<std::weak_ptr<Stream>> resting_;  ///< drained a moment ago; looked at again when the timer ends
  int failing_ = 0;                             ///< streams that cannot be written
  int64_t lost_bytes_ = 0;                      ///< of those that failed since the last notice
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace trainctl
