// A connection to the other side: reads frames and writes bytes, on the event loop.
#include "launcher/hosts/wire.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

namespace trainctl::hosts {
namespace {

namespace asio = boost::asio;

constexpr size_t kMostNoise = 1 << 16;

}  // namespace

std::shared_ptr<Wire> Wire::open(asio::io_context& loop, int read_fd, int write_fd, std::string first_line,
                                 Events events) {
  std::shared_ptr<Wire> wire(new Wire(loop, read_fd, write_fd, std::move(first_line), std::move(events)));
  wire->read();
  return wire;
}

Wire::Wire(asio::io_context& loop, int read_fd, int write_fd, std::string first_line, Events events)
    : in_(loop, read_fd),
      out_end_(loop, write_fd == read_fd ? dup(write_fd) : write_fd),
      first_line_(std::move(first_line)),
      events_(std::move(events)) {
  in_.non_blocking(true);
  out_end_.non_blocking(true);
}

void Wire::write(std::string bytes) {
  if (closed_) return;
  waiting_ += bytes;
  flush();
}

void Wire::flush() {
  if (closed_ || (writing_.empty() && waiting_.empty())) return;
  if (is_writing_) return;
  if (writing_.empty()) writing_.swap(waiting_);
  is_writing_ = true;
  out_end_.async_write_some(asio::buffer(writing_),
                            [self = shared_from_this()](const boost::system::error_code& error, size_t n) {
                              self->is_writing_ = false;
                              if (self->closed_) return;
                              if (error) return;  // data that the other side sent before closing is still read
                              self->writing_.erase(0, n);
                              self->flush();
                            });
}

void Wire::pause(bool paused) {
  if (std::exchange(paused_, paused) && !paused) read();
}

void Wire::read() {
  if (reading_ || paused_ || closed_) return;
  reading_ = true;
  in_.async_read_some(asio::buffer(buffer_),
                      [self = shared_from_this()](const boost::system::error_code& error, size_t n) {
                        self->reading_ = false;
                        if (self->closed_) return;
                        if (error)
                          return self->fail(error == asio::error::eof ? "the connection was closed" : error.message());
                        self->heard_ = std::chrono::steady_clock::now();
                        self->take({self->buffer_.data(), n});
                        self->read();
                      });
}

void Wire::take(std::string_view bytes) {
  if (!first_line_.empty()) {
    noise_ += bytes;
    const size_t at = noise_.find(first_line_ + "\n");
    if (at == std::string::npos) {
      if (noise_.size() > kMostNoise) fail("unexpected output in place of an agent's");
      return;
    }
    const std::string rest = noise_.substr(at + first_line_.size() + 1);
    noise_.resize(at);
    first_line_.clear();
    frames_.feed(rest);
  } else {
    frames_.feed(bytes);
  }
  while (!closed_) {
    std::optional<Frame> frame = frames_.next();
    if (frame) {
      events_.frame(std::move(*frame));
      continue;
    }
    if (frames_.broken()) fail("it sent an invalid frame");
    return;
  }
}

void Wire::fail(const std::string& why) {
  if (closed_) return;
  const auto closed = events_.closed;
  close();
  if (closed) closed(why);
}

void Wire::close() {
  if (std::exchange(closed_, true)) return;
  boost::system::error_code ignored;
  in_.close(ignored);
  out_end_.close(ignored);
}

double Wire::silent_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - heard_).count();
}

}  // namespace trainctl::hosts
