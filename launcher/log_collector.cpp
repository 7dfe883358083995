// Copies pipes to a sink, driven by readable events.
#include "launcher/log_collector.h"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <utility>

namespace trainctl {
namespace {

namespace asio = boost::asio;

/// Pause between reads from a rank that writes line by line: waking for every line would take CPU time from the ranks.
constexpr auto kRest = std::chrono::milliseconds(10);
/// After a read of more than this the next one follows immediately, so that the pipe does not fill up.
constexpr int64_t kBusyBytes = 1 << 15;

}  // namespace

struct LogCollector::Stream {
  Stream(asio::io_context& loop, uint32_t its_number, LogPipe::OnBytes on_bytes, LogPipe::OnLine on_line)
      : number(its_number), pipe(std::move(on_bytes), std::move(on_line)), descriptor(loop) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { stop_watching(); }

  void stop_watching() {
    if (descriptor.is_open()) descriptor.release();  // LogPipe closes it
    watched = false;
  }

  const uint32_t number;
  LogPipe pipe;
  asio::posix::stream_descriptor descriptor;
  bool watched = false;
};

LogCollector::LogCollector(asio::io_context& loop, LogSink& sink, int ranks, OnLine on_line)
    : loop_(loop), sink_(sink), on_line_(std::move(on_line)), timer_(loop) {
  allow_files_of_logs(static_cast<size_t>(ranks));
}

LogCollector::~LogCollector() = default;

LogCollector::WriteEnds LogCollector::open(int rank, int restart) {
  RankStreams streams{open_stream(rank, false, restart), open_stream(rank, true, restart)};
  const WriteEnds ends{streams.out->pipe.write_end(), streams.err->pipe.write_end()};
  ranks_[rank] = std::move(streams);
  return ends;
}

std::shared_ptr<LogCollector::Stream> LogCollector::open_stream(int rank, bool is_error, int restart) {
  LogPipe::OnLine on_line;
  if (on_line_) on_line = [this, rank, is_error](std::string_view line) { on_line_(rank, line, is_error); };
  const uint32_t number = ++last_stream_;
  auto stream = std::make_shared<Stream>(
      loop_, number, [this, number](std::string_view bytes, int64_t ns) { sink_.write(number, bytes, ns); },
      std::move(on_line));
  sink_.open(number, rank, is_error, restart);
  return stream;
}

void LogCollector::started(int rank) {
  for (const auto& stream : {ranks_.at(rank).out, ranks_.at(rank).err}) {
    stream->pipe.close_write_end();
    stream->descriptor.assign(stream->pipe.read_end());
    stream->watched = true;
    watch(stream);
  }
}

void LogCollector::finish(int rank) {
  for (const auto& stream : {ranks_.at(rank).out, ranks_.at(rank).err}) {
    stream->stop_watching();
    stream->pipe.finish();
    sink_.close(stream->number);
  }
}

std::string LogCollector::last_lines(int rank, int lines) const { return ranks_.at(rank).err->pipe.tail(lines); }

void LogCollector::watch(const std::shared_ptr<Stream>& stream) {
  stream->descriptor.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr(alive_), weak = std::weak_ptr(stream)](const boost::system::error_code& error) {
        const auto readable_stream = weak.lock();
        if (!error && !alive.expired() && readable_stream && readable_stream->watched) readable(readable_stream);
      });
}

void LogCollector::readable(const std::shared_ptr<Stream>& stream) {
  if (sink_.is_full()) return rest(stream);  // the rank waits
  const int64_t moved = stream->pipe.drain();
  if (stream->pipe.ended()) {
    stream->stop_watching();
  } else if (moved >= kBusyBytes) {
    watch(stream);
  } else {
    rest(stream);
  }
}

void LogCollector::rest(const std::shared_ptr<Stream>& stream) {
  resting_.push_back(stream);
  if (resting_.size() > 1) return;
  timer_.expires_after(kRest);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (error || alive.expired()) return;
    for (const auto& weak : std::exchange(resting_, {})) {
      if (const auto rested = weak.lock(); rested && rested->watched) watch(rested);
    }
  });
}

}  // namespace trainctl
