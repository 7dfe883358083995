// The output of ranks on other hosts: writes it to this host's logs, and reports its lines.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/log_sink.h"

namespace trainctl::hosts {

class RankOutputs {
 public:
  using OnLine = std::function<void(int rank, std::string_view line, bool is_error)>;
  /// `logs` must outlive it.
  RankOutputs(LogSink& logs, OnLine on_line) : logs_(logs), on_line_(std::move(on_line)) {}

  /// The rank starts: its output is a new stream of its log.
  void open(int rank, int attempt);
  void write(int rank, bool is_error, std::string_view bytes);
  /// The rank has ended: its last line may be incomplete.
  void close(int rank);

 private:
  struct Output {
    uint32_t out = 0, err = 0;     ///< streams of the logs
    std::string line, error_line;  ///< incomplete last lines
  };
  void report_lines(int rank, bool is_error, bool ends);

  LogSink& logs_;
  const OnLine on_line_;
  std::map<int, Output> outputs_;
  uint32_t last_stream_ = 0;
};

}  // namespace trainctl::hosts
