// Pipes to the log process, driven by readable events.
#include "launcher/log_collector.h"

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/open_files.h"
#include "engine/base/text.h"
#include "launcher/rank_error.h"

namespace trainctl {
namespace {

namespace asio = boost::asio;

/// Between two visits to a rank that writes line by line: waking up for every line would take CPU time from the ranks.
constexpr auto kRest = std::chrono::milliseconds(10);
/// After a visit that moved more than this the next one follows at once: the pipe must not fill up.
constexpr int64_t kBusyBytes = 1 << 15;

constexpr rlim_t kFilesPerRank = 6;  ///< two streams, each with pipe, log and times
/// Output that waits for the disk. Beyond it ranks wait as well, or, if the disk does not answer, output is lost.
constexpr int64_t kMostPendingBytes = 16 << 20;
constexpr double kHangSeconds = 2;
/// A longer gap between looks means that the launcher itself was held up.
constexpr double kMostBetweenLooksSeconds = 0.5;
constexpr rlim_t kOtherFiles = 256;

}  // namespace

struct LogCollector::Stream {
  Stream(asio::io_context& loop, uint32_t its_number, LogFiles log_files, LogPipe::OnBytes on_bytes,
         LogPipe::OnLine on_line)
      : number(its_number),
        files(std::move(log_files)),
        pipe(std::move(on_bytes), std::move(on_line)),
        descriptor(loop) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { stop_watching(); }

  void stop_watching() {
    if (descriptor.is_open()) descriptor.release();  // the pipe closes it
    watched = false;
  }

  const uint32_t number;
  const LogFiles files;
  LogPipe pipe;
  asio::posix::stream_descriptor descriptor;
  bool watched = false, finished = false;
  bool failing = false;
  int64_t lost_before = 0;
  int64_t dropped = 0;  ///< bytes that the log process has not been told of
  bool dropped_mid_line = false;
};

LogCollector::LogCollector(asio::io_context& loop, RunDirectory directory, const LogLimits& limits, int ranks,
                           Listeners listeners)
    : loop_(loop), directory_(std::move(directory)), limits_(limits), listeners_(std::move(listeners)), timer_(loop) {
  allow_open_files(kFilesPerRank * static_cast<rlim_t>(ranks) + kOtherFiles);
  start_process();
}

LogCollector::~LogCollector() = default;

void LogCollector::start_process() {
  process_ = std::make_unique<LogProcess>(loop_, limits_, [this](const LogReport& report) { reported(report); });
  seen_reports_ = 0;
}

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
  const uint32_t number = ++last_stream_;
  auto stream = std::make_shared<Stream>(
      loop_, number, LogFiles{directory_.rank_path(rank), name},
      [this, number](std::string_view bytes, int64_t ns) { put(*streams_.at(number), bytes, ns); }, std::move(on_line));
  streams_[number] = stream;
  process_->open(number, stream->files, restart, unix_ns());
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
    if (stream->dropped > 0) process_->skip(stream->number, stream->dropped, stream->dropped_mid_line);
    stream->dropped = 0;
    stream->finished = true;
    process_->close(stream->number);
  }
}

std::string LogCollector::last_words(int rank, int lines) const { return ranks_.at(rank).err->pipe.tail(lines); }

void LogCollector::watch(const std::shared_ptr<Stream>& stream) {
  stream->descriptor.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr(alive_), weak = std::weak_ptr(stream)](const boost::system::error_code& error) {
        const auto readable_stream = weak.lock();
        if (!error && !alive.expired() && readable_stream && readable_stream->watched) readable(readable_stream);
      });
}

void LogCollector::readable(const std::shared_ptr<Stream>& stream) {
  if (is_behind() && !hangs_) return rest(stream);  // the rank waits for the disk
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

bool LogCollector::is_behind() const { return process_->pending_bytes() > kMostPendingBytes; }

void LogCollector::put(Stream& stream, std::string_view bytes, int64_t ns) {
  if (hangs_ && is_behind()) {
    stream.dropped += static_cast<int64_t>(bytes.size());
    stream.dropped_mid_line = bytes.back() != '\n';
    dropped_bytes_ += static_cast<int64_t>(bytes.size());
    return;
  }
  if (stream.dropped > 0) process_->skip(stream.number, std::exchange(stream.dropped, 0), stream.dropped_mid_line);
  process_->write(stream.number, bytes, ns);
}

void LogCollector::watch_disk() {
  const double now = steady_seconds();
  const double passed = looked_ > 0 ? std::min(now - looked_, kMostBetweenLooksSeconds) : 0;
  looked_ = now;
  if (process_->is_dead()) return restart_process();
  const bool moved = process_->reports() != seen_reports_ || process_->pending_bytes() == 0;
  seen_reports_ = process_->reports();
  silent_seconds_ = moved ? 0 : silent_seconds_ + passed;
  if (!hangs_ && silent_seconds_ >= kHangSeconds) {
    hangs_ = true;
    notice("the disk of " + directory_.path() +
           " does not answer; the training goes on, and what does not fit into memory is lost");
  } else if (hangs_ && moved) {
    hangs_ = false;
    notice("the disk of " + directory_.path() + " answers again: " + with_commas(std::exchange(dropped_bytes_, 0)) +
           " bytes of the logs were lost");
  }
}

/// It was killed, for example for lack of memory.
void LogCollector::restart_process() {
  const int64_t lost = process_->pending_bytes();
  try {
    start_process();
  } catch (const EnvError&) {
    return;  // the next look tries again
  }
  failing_ = 0;
  for (auto at = streams_.begin(); at != streams_.end();) {
    if (at->second->finished) {
      at = streams_.erase(at);
      continue;
    }
    at->second->failing = false;
    at->second->lost_before = 0;
    process_->open(at->first, at->second->files, 0, unix_ns());
    ++at;
  }
  notice("the process that writes the logs was killed; another one goes on, and up to " + with_commas(lost) +
         " bytes of the logs were lost");
}

void LogCollector::reported(const LogReport& report) {
  const auto found = streams_.find(report.stream);
  if (found == streams_.end()) return;
  look_for_trouble(*found->second, report);
  if (report.closed != 0) streams_.erase(found);
}

void LogCollector::look_for_trouble(Stream& stream, const LogReport& report) {
  const bool failing = report.error != 0, closed = report.closed != 0;
  if (failing && !stream.failing && failing_++ == 0) {
    notice("cannot write " + stream.files.path(LogFiles::kCurrent) + ": " + std::strerror(report.error) +
           "; the training goes on, and what cannot be written is lost");
  }
  stream.failing = stream.failing || failing;
  if (!stream.failing || (failing && !closed)) return;
  stream.failing = false;
  lost_bytes_ += report.lost_bytes - std::exchange(stream.lost_before, report.lost_bytes);
  if (--failing_ > 0) return;
  notice((closed ? "logs could not be written: " : "logs are written again: ") +
         with_commas(std::exchange(lost_bytes_, 0)) + " bytes were lost");
}

void LogCollector::end() {
  hangs_ = !process_->finish(hangs_ ? kHangSeconds / 2 : kHangSeconds);
  if (!hangs_) return;
  const std::string why = process_->is_dead() ? "the process that writes the logs was killed"
                                              : "the disk of " + directory_.path() + " does not answer";
  notice(why + ": the last " + with_commas(process_->pending_bytes() + dropped_bytes_) +
         " bytes of the logs could not be written");
}

void LogCollector::notice(const std::string& message) const {
  if (listeners_.on_notice) listeners_.on_notice(message);
}

}  // namespace trainctl
