// A connection to the other side: reads frames and writes bytes, on the event loop.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "launcher/hosts/frame.h"

namespace trainctl::hosts {

class Wire : public std::enable_shared_from_this<Wire> {
 public:
  struct Events {
    std::function<void(Frame frame)> frame;
    /// The last event: the other side has closed the connection, or has sent an invalid frame.
    std::function<void(const std::string& why)> closed;
  };

  /// Takes both descriptors, which may be the same one. `first_line`: data before a line with this text is not a frame
  /// and is skipped (output of a login shell); empty: frames begin immediately.
  static std::shared_ptr<Wire> open(boost::asio::io_context& loop, int read_fd, int write_fd, std::string first_line,
                                    Events events);

  void write(std::string bytes);
  size_t unwritten_bytes() const { return writing_.size() + waiting_.size(); }
  /// Closes the connection; no event follows.
  void close();
  /// While it is set nothing is read, which eventually makes the other side wait.
  void pause(bool paused);
  /// Seconds since bytes arrived, or since the connection was opened.
  double silent_seconds() const;
  /// Bytes that arrived before `first_line`, up to 4 KiB.
  const std::string& noise() const { return noise_; }

 private:
  Wire(boost::asio::io_context& loop, int read_fd, int write_fd, std::string first_line, Events events);
  void read();
  void take(std::string_view bytes);
  void flush();
  void fail(const std::string& why);

  boost::asio::posix::stream_descriptor in_, out_end_;
  std::string first_line_, noise_;
  Events events_;
  FrameReader frames_;
  std::array<char, 1 << 16> buffer_{};
  std::string writing_, waiting_;  ///< a write in progress reads the first, which must not move
  bool is_writing_ = false, reading_ = false, paused_ = false, closed_ = false;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
};

}  // namespace trainctl::hosts
