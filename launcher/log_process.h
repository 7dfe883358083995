// The process that writes the ranks' logs. A hanging write blocks its process, and a process cannot end while one of
// its threads is blocked: so the launcher leaves these writes to another process.
//
//   launcher ──▶ log process   message*   message = kind:u32 stream:u32 ns:i64 value:i64 size:u64 bytes[size]
//   log process ──▶ launcher   report*    one per message, in the same order
//
//   open   value: restarts of the ranks so far; bytes: directory \0 name of LogFiles
//   write  bytes of the stream, which arrived at `ns`
//   skip   `value` bytes of the stream were lost; ns: 1 if the last one was not a newline
//   close
//
// Integers are in host order. End of file on the socket means that the launcher has ended: the log process then writes
// what it has received, and ends.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/log_files.h"

namespace trainctl {

/// The state of a stream after a message.
struct LogReport {
  uint32_t stream = 0;
  int32_t error = 0;       ///< errno of the last write; 0: none
  int64_t lost_bytes = 0;  ///< in total
  int64_t closed = 0;      ///< 1: this is its last report
};

class LogProcess {
 public:
  using OnReport = std::function<void(const LogReport&)>;

  /// Forks it. `on_report` is called by `loop`, and by finish(). Throws EnvError.
  LogProcess(boost::asio::io_context& loop, const LogLimits& limits, OnReport on_report);
  LogProcess(const LogProcess&) = delete;
  LogProcess& operator=(const LogProcess&) = delete;
  /// Kills it if it has not written everything.
  ~LogProcess();

  // Messages. These functions return immediately and do not fail.
  void open(uint32_t stream, const LogFiles& files, int restart, int64_t ns);
  void write(uint32_t stream, std::string_view bytes, int64_t ns);
  void skip(uint32_t stream, int64_t bytes, bool mid_line);
  void close(uint32_t stream);

  /// Bytes of messages that have not been reported.
  int64_t pending_bytes() const { return pending_bytes_; }
  /// Number of reports so far. If it does not grow while bytes are pending, the disk does not respond.
  int64_t reports() const { return reports_; }
  /// Returns whether the process has ended unexpectedly.
  bool is_dead() const { return dead_; }
  int pid() const { return pid_; }

  /// Waits until everything is written, or nothing was written for `seconds`. Returns whether everything was written.
  bool finish(double seconds);

 private:
  void send(uint32_t kind, uint32_t stream, int64_t ns, int64_t value, std::string_view bytes);
  void flush();
  void await_room();
  void await_reports();
  void read_reports();
  void died();

  OnReport on_report_;
  boost::asio::posix::stream_descriptor socket_;
  int pid_ = -1;
  std::string unsent_;
  size_t sent_ = 0;                 ///< number of bytes of unsent_ already sent
  std::deque<int64_t> unreported_;  ///< the sizes of messages
  std::string partial_report_;
  int64_t pending_bytes_ = 0, reports_ = 0;
  bool awaiting_room_ = false, dead_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace trainctl
