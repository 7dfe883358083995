// Pipes to logs, driven by readable events.
#include "launcher/log_collector.h"

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstring>

#include "engine/base/open_files.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

namespace asio = boost::asio;

/// Between two visits to a rank that writes line by line: waking up for every line would take CPU time from the ranks.
constexpr auto kRest = std::chrono::milliseconds(10);
/// After a visit that moved more than this the next one follows at once: the pipe must not fill up.
constexpr int64_t kBusyBytes = 1 << 15;

constexpr rlim_t kFilesPerRank = 6;  ///< two streams, each with pipe, log and times
constexpr rlim_t kOtherFiles = 256;

}  // namespace

struct LogCollector::Stream {
  Stream(asio::io_context& loop, LogFiles files, const LogLimits& limits, int restart, LogPipe::OnLine on_line)
      : pipe(std::move(files), limits, restart, std::move(on_line)), descriptor(loop) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { stop_watching(); }

  void stop_watching() {
    if (descriptor.is_open()) descriptor.release();  // the pipe closes it
    watched = false;
  }

  LogPipe pipe;
  asio::posix::stream_descriptor descriptor;
  std::string path;
  bool watched = false;
  bool failing = false;
  int64_t lost_before = 0;
};

LogCollector::LogCollector(asio::io_context& loop, RunDirectory directory, const LogLimits& limits, int ranks,
                           Listeners listeners)
    : loop_(loop), directory_(std::move(directory)), limits_(limits), listeners_(std::move(listeners)), timer_(loop) {
  allow_open_files(kFilesPerRank * static_cast<rlim_t>(ranks) + kOtherFiles);
}

LogCollector::~LogCollector() = default;

LogCollector::WriteEnds LogCollector::open(int rank, int restart) {
  RankStreams streams{open_stream(rank, "stdout", restart), open_stream(rank, "stderr", restart)};
  const WriteEnds ends{streams.out->pipe.write_end(), streams.err->pipe.write_end()};
  ranks_[rank] = std::move(streams);
  return ends;
}

std::shared_ptr<LogCollector::Stream> LogCollector::open_stream(int rank, const char* name, int restart) {
  const auto& listener = name == std::string_view("stdout") ? listeners_.on_line : listeners_.on_error_line;
  LogPipe::OnLine on_line;
  if (listener) on_line = [&listener, rank](std::string_view line) { listener(rank, line); };
  const LogFiles files{directory_.rank_path(rank), name};
  auto stream = std::make_shared<Stream>(loop_, files, limits_, restart, std::move(on_line));
  stream->path = files.path(LogFiles::kCurrent);
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
    look_for_trouble(*stream, true);
  }
}

void LogCollector::watch(const std::shared_ptr<Stream>& stream) {
  stream->descriptor.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr(alive_), weak = std::weak_ptr(stream)](const boost::system::error_code& error) {
        const auto readable_stream = weak.lock();
        if (!error && !alive.expired() && readable_stream && readable_stream->watched) readable(readable_stream);
      });
}

void LogCollector::readable(const std::shared_ptr<Stream>& stream) {
  const int64_t moved = stream->pipe.drain();
  look_for_trouble(*stream, false);
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

void LogCollector::look_for_trouble(Stream& stream, bool finished) {
  const LogWriter& log = stream.pipe.log();
  const bool failing = log.error() != 0;
  if (failing && !stream.failing && failing_++ == 0) {
    notice("cannot write " + stream.path + ": " + std::strerror(log.error()) +
           "; the training goes on, and what cannot be written is lost");
  }
  stream.failing = stream.failing || failing;
  if (!stream.failing || (failing && !finished)) return;
  stream.failing = false;
  lost_bytes_ += log.lost_bytes() - stream.lost_before;
  stream.lost_before = log.lost_bytes();
  if (--failing_ > 0) return;
  notice((finished ? "logs could not be written: " : "logs are written again: ") + with_commas(lost_bytes_) +
         " bytes were lost");
  lost_bytes_ = 0;
}

void LogCollector::notice(const std::string& message) const {
  if (listeners_.on_notice) listeners_.on_notice(message);
}

}  // namespace trainctl
