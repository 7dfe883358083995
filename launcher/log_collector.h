// Reads the output of the ranks of this host from their pipes, driven by the event loop, into a LogSink.
//
//   rank ── pipe ──▶ LogCollector ──▶ LogSink
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
#include "launcher/log_sink.h"

namespace trainctl {

class LogCollector {
 public:
  /// Receives each line of a rank's stdout, or of its stderr if `is_error`.
  using OnLine = std::function<void(int rank, std::string_view line, bool is_error)>;

  /// `sink` must outlive it. Raises the limit of open files as needed for `ranks` ranks, which may exceed the usual
  /// limit.
  LogCollector(boost::asio::io_context& loop, LogSink& sink, int ranks, OnLine on_line);
  LogCollector(const LogCollector&) = delete;
  LogCollector& operator=(const LogCollector&) = delete;
  ~LogCollector();

  /// The descriptors for a rank's stdout and stderr, open until started(). `restart`: number of restarts so far.
  /// Throws EnvError.
  struct WriteEnds {
    int out, err;
  };
  WriteEnds open(int rank, int restart);
  /// Called when the rank has inherited the descriptors: collects its output from now on.
  void started(int rank);
  /// Called when the rank has ended: reads the rest of its output.
  void finish(int rank);
  /// The last lines that a rank wrote to stderr since it was opened.
  std::string last_lines(int rank, int lines) const;

 private:
  struct Stream;

  std::shared_ptr<Stream> open_stream(int rank, bool is_error, int restart);
  void watch(const std::shared_ptr<Stream>& stream);
  void readable(const std::shared_ptr<Stream>& stream);
  void rest(const std::shared_ptr<Stream>& stream);

  boost::asio::io_context& loop_;
  LogSink& sink_;
  const OnLine on_line_;
  struct RankStreams {
    std::shared_ptr<Stream> out, err;
  };
  std::map<int, RankStreams> ranks_;
  uint32_t last_stream_ = 0;
  boost::asio::steady_timer timer_;             ///< runs while streams rest
  std::vector<std::weak_ptr<Stream>> resting_;  ///< drained recently; read next when the timer expires
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace trainctl
