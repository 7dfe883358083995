// Adds prefixes, writes JSON, and selects the last lines of each rank.
#include "cli/render/log_printer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr std::string_view kReset = "\033[0m";

/// The part of a line that a terminal would finally show: a progress bar overwrites itself.
std::string_view shown(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t at = line.rfind('\r');
  return at == std::string_view::npos ? line : line.substr(at + 1);
}

std::string_view color_of(const LogSource& source) {
  static constexpr std::string_view kColors[] = {"\033[36m", "\033[32m", "\033[33m", "\033[34m", "\033[35m"};
  return source.is_stderr ? "\033[31m" : kColors[static_cast<size_t>(source.rank) % std::size(kColors)];
}

std::string json_text(std::string_view text) {
  const bool is_plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; });
  if (is_plain) return '"' + std::string(text) + '"';  // the common case
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

LinePattern::LinePattern(const std::string& pattern) {
  const int error = regcomp(&compiled_, pattern.c_str(), REG_EXTENDED | REG_NOSUB);
  if (error == 0) return;
  char text[256];
  regerror(error, &compiled_, text, sizeof text);
  throw std::invalid_argument("'" + pattern + "' is not a regular expression: " + text);
}

LinePattern::~LinePattern() { regfree(&compiled_); }

bool LinePattern::matches(std::string_view line) const {
  regmatch_t range{0, static_cast<regoff_t>(line.size())};
  return regexec(&compiled_, line.data(), 0, &range, REG_STARTEND) == 0;
}

std::string format_time(int64_t unix_ns) {
  if (unix_ns <= 0) return "";
  const time_t seconds = unix_ns / 1'000'000'000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[48];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + length, sizeof text - length, ".%09dZ", static_cast<int>(unix_ns % 1'000'000'000));
  return text;
}

LogPrinter::LogPrinter(Options options) : options_(std::move(options)) {
  if (!options_.grep.empty()) pattern_ = std::make_unique<LinePattern>(options_.grep);
}

void LogPrinter::block(const LogSource& source, const LogBlock& block) {
  if (block.kind != LogBlock::Kind::lines) return event(source, block);
  std::string_view text = block.text;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    line(source, block.ns, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void LogPrinter::line(const LogSource& source, int64_t ns, std::string_view line) {
  const std::string_view text = shown(line);
  if (pattern_ && !pattern_->matches(text)) return;
  const size_t begin = out_.size();
  if (options_.json) {
    json_line(source, ns, "text", json_text(line));
  } else {
    if (options_.prefix) out_ += prefix(source);
    if (options_.terminal)
      out_ += terminal_line(text, options_.colors);
    else
      out_ += text;
    out_ += '\n';
  }
  if (options_.tail) keep(source.rank, begin);
}

void LogPrinter::event(const LogSource& source, const LogBlock& block) {
  const bool is_restart = block.kind == LogBlock::Kind::restart;
  if (is_restart) {
    // Both streams of the rank record the restart; print it once.
    int64_t& restart = restarts_[source.rank];
    if (restart >= block.value) return;
    restart = block.value;
  }
  if (pattern_ || (options_.json && is_restart)) return;
  const size_t begin = out_.size();
  if (options_.json) {
    json_line(source, block.ns, "lost_bytes", std::to_string(block.value));
  } else {
    const std::string what = is_restart ? "restart " + std::to_string(block.value)
                                        : with_commas(block.value) + " bytes could not be written here";
    if (options_.prefix) out_ += prefix(source);
    out_ += "--- " + what + " ---\n";
  }
  if (options_.tail) keep(source.rank, begin);
}

void LogPrinter::json_line(const LogSource& source, int64_t ns, std::string_view key, const std::string& value) {
  const std::string time = format_time(ns);
  out_ += "{\"time\":";
  out_ += time.empty() ? "null" : "\"" + time + "\"";
  out_ += ",\"rank\":" + std::to_string(source.rank);
  out_ += source.is_stderr ? ",\"stream\":\"stderr\"" : ",\"stream\":\"stdout\"";
  if (const auto restart = restarts_.find(source.rank); restart != restarts_.end()) {
    out_ += ",\"restart\":" + std::to_string(restart->second);
  }
  out_.append(",\"").append(key).append("\":").append(value).append("}\n");
}

const std::string& LogPrinter::prefix(const LogSource& source) {
  std::string& text = prefixes_[{source.rank, source.is_stderr}];
  if (!text.empty()) return text;
  const std::string number = std::to_string(source.rank);
  const size_t width = std::to_string(options_.largest_rank).size();
  text = "rank " + std::string(width - std::min(width, number.size()), ' ') + number;
  if (options_.names.is_server(source.rank)) text = options_.names.name(source.rank);
  text += source.is_stderr ? " err | " : " | ";
  if (options_.colors) text = std::string(color_of(source)) + text + std::string(kReset);
  return text;
}

void LogPrinter::keep(int rank, size_t begin) {
  std::deque<Kept>& tail = tails_[rank];
  tail.push_back({place_++, out_.substr(begin)});
  out_.resize(begin);
  if (static_cast<int64_t>(tail.size()) > *options_.tail) tail.pop_front();
}

void LogPrinter::end_tail() {
  if (!options_.tail) return;
  options_.tail.reset();
  std::vector<Kept> lines;
  for (auto& [rank, tail] : tails_) std::move(tail.begin(), tail.end(), std::back_inserter(lines));
  tails_.clear();
  std::sort(lines.begin(), lines.end(), [](const Kept& a, const Kept& b) { return a.place < b.place; });
  for (const Kept& line : lines) out_ += line.text;
}

std::string LogPrinter::take() { return std::exchange(out_, {}); }

}  // namespace trainctl
