// Passes the ranks' output to the disk of this host through the process that writes their logs (log_process.h).
#include "launcher/log_disk.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/text.h"
#include "launcher/log_pipe.h"
#include "launcher/rank_error.h"

namespace trainctl {
namespace {

/// Largest output that waits for the disk. Beyond it, ranks wait too; if the disk does not respond, output is lost.
constexpr int64_t kMostPendingBytes = 16 << 20;
constexpr double kHangSeconds = 2;
/// A longer gap between calls means that the launcher itself was delayed.
constexpr double kMostBetweenLooksSeconds = 0.5;

}  // namespace

LogDisk::LogDisk(boost::asio::io_context& loop, RunDirectory directory, const LogLimits& limits,
                 std::function<void(const std::string& message)> on_notice)
    : loop_(loop), directory_(std::move(directory)), limits_(limits), on_notice_(std::move(on_notice)) {
  allow_files_of_logs(directory_.ranks().size());  // the log process inherits the limits at its start
  start_process();
}

void LogDisk::start_process() {
  process_ = std::make_unique<LogProcess>(loop_, limits_, [this](const LogReport& report) { reported(report); });
  seen_reports_ = 0;
}

void LogDisk::open(uint32_t number, int rank, bool is_error, int restart) {
  const Stream& stream =
      streams_.emplace(number, Stream{{directory_.rank_path(rank), is_error ? "stderr" : "stdout"}}).first->second;
  process_->open(number, stream.files, restart, unix_ns());
}

void LogDisk::write(uint32_t number, std::string_view bytes, int64_t ns) {
  Stream& stream = streams_.at(number);
  if (hangs_ && is_behind()) {
    stream.dropped += static_cast<int64_t>(bytes.size());
    stream.dropped_mid_line = bytes.back() != '\n';
    dropped_bytes_ += static_cast<int64_t>(bytes.size());
    return;
  }
  if (stream.dropped > 0) process_->skip(number, std::exchange(stream.dropped, 0), stream.dropped_mid_line);
  process_->write(number, bytes, ns);
}

void LogDisk::close(uint32_t number) {
  Stream& stream = streams_.at(number);
  if (stream.dropped > 0) process_->skip(number, std::exchange(stream.dropped, 0), stream.dropped_mid_line);
  stream.finished = true;
  process_->close(number);
}

bool LogDisk::is_behind() const { return process_->pending_bytes() > kMostPendingBytes; }

void LogDisk::look() {
  const double now = steady_seconds();
  const double passed = looked_ > 0 ? std::min(now - looked_, kMostBetweenLooksSeconds) : 0;
  looked_ = now;
  if (process_->is_dead()) return restart_process();
  const bool moved = process_->reports() != seen_reports_ || process_->pending_bytes() == 0;
  seen_reports_ = process_->reports();
  silent_seconds_ = moved ? 0 : silent_seconds_ + passed;
  if (!hangs_ && silent_seconds_ >= kHangSeconds) {
    hangs_ = true;
    on_notice_("the disk of " + directory_.path() +
               " does not respond; training continues, but log output that does not fit in memory is lost");
  } else if (hangs_ && moved) {
    hangs_ = false;
    on_notice_("the disk of " + directory_.path() +
               " responds again: " + with_commas(std::exchange(dropped_bytes_, 0)) + " bytes of the logs were lost");
  }
}

/// Called when the log process was killed, for example because memory ran out.
void LogDisk::restart_process() {
  const int64_t lost = process_->pending_bytes();
  try {
    start_process();
  } catch (const EnvError&) {
    return;  // the next call retries
  }
  failing_ = 0;
  for (auto at = streams_.begin(); at != streams_.end();) {
    if (at->second.finished) {
      at = streams_.erase(at);
      continue;
    }
    at->second.failing = false;
    at->second.lost_before = 0;
    process_->open(at->first, at->second.files, 0, unix_ns());
    ++at;
  }
  on_notice_("the process that writes the logs was killed and has been replaced; up to " + with_commas(lost) +
             " bytes of the logs were lost");
}

void LogDisk::reported(const LogReport& report) {
  const auto found = streams_.find(report.stream);
  if (found == streams_.end()) return;
  look_for_trouble(found->second, report);
  if (report.closed != 0) streams_.erase(found);
}

void LogDisk::look_for_trouble(Stream& stream, const LogReport& report) {
  const bool failing = report.error != 0, closed = report.closed != 0;
  if (failing && !stream.failing && failing_++ == 0) {
    on_notice_("cannot write " + stream.files.path(LogFiles::kCurrent) + ": " + describe_errno(report.error) +
               "; training continues, but log output that cannot be written is lost");
  }
  stream.failing = stream.failing || failing;
  if (!stream.failing || (failing && !closed)) return;
  stream.failing = false;
  lost_bytes_ += report.lost_bytes - std::exchange(stream.lost_before, report.lost_bytes);
  if (--failing_ > 0) return;
  on_notice_((closed ? "logs could not be written: " : "logs are being written again: ") +
             with_commas(std::exchange(lost_bytes_, 0)) + " bytes were lost");
}

void LogDisk::end() {
  hangs_ = !process_->finish(hangs_ ? kHangSeconds / 2 : kHangSeconds);
  if (!hangs_) return;
  const std::string why = process_->is_dead() ? "the process that writes the logs was killed"
                                              : "the disk of " + directory_.path() + " does not respond";
  on_notice_(why + ": the last " + with_commas(process_->pending_bytes() + dropped_bytes_) +
             " bytes of the logs could not be written");
}

}  // namespace trainctl
