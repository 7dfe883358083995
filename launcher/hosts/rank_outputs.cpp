// The output of ranks on other hosts: writes it to this host's logs, and reports its lines.
#include "launcher/hosts/rank_outputs.h"

#include "launcher/log_pipe.h"

namespace trainctl::hosts {

void RankOutputs::open(int rank, int attempt) {
  Output output;
  logs_.open(output.out = ++last_stream_, rank, false, attempt);
  logs_.open(output.err = ++last_stream_, rank, true, attempt);
  outputs_[rank] = std::move(output);
}

void RankOutputs::write(int rank, bool is_error, std::string_view bytes) {
  Output& output = outputs_.at(rank);
  logs_.write(is_error ? output.err : output.out, bytes, unix_ns());
  (is_error ? output.error_line : output.line) += bytes;
  report_lines(rank, is_error, false);
}

void RankOutputs::close(int rank) {
  report_lines(rank, false, true);
  report_lines(rank, true, true);
  const Output& output = outputs_.at(rank);
  logs_.close(output.out);
  logs_.close(output.err);
}

void RankOutputs::report_lines(int rank, bool is_error, bool ends) {
  std::string& line = is_error ? outputs_.at(rank).error_line : outputs_.at(rank).line;
  size_t at = 0;
  for (size_t end = line.find('\n'); end != std::string::npos; end = line.find('\n', at)) {
    on_line_(rank, std::string_view(line).substr(at, end - at), is_error);
    at = end + 1;
  }
  line.erase(0, at);
  if (!ends || line.empty()) return;
  on_line_(rank, line, is_error);
  line.clear();
}

}  // namespace trainctl::hosts
