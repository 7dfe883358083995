// Merges streams with a heap of their next blocks.
#include "launcher/log_merge.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

namespace trainctl {
namespace {

/// Upper bound on the time between the launcher's timestamp of bytes and their appearance in the log.
constexpr int64_t kSettleNs = 20'000'000;
constexpr size_t kMostAtOnce = 1 << 24;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct LogMerge::Source {
  Source(const RunDirectory& directory, LogSource who_, size_t place_)
      : who(who_), place(place_), stream({directory.rank_path(who.rank), who.is_stderr ? "stderr" : "stdout"}) {}

  LogSource who;
  size_t place;
  LogStream stream;
  std::optional<LogBlock> block;

  /// Heap order with the earliest block at the front.
  static bool later(const Source* a, const Source* b) {
    return a->block->ns != b->block->ns ? a->block->ns > b->block->ns : a->place > b->place;
  }
};

LogMerge::LogMerge(const RunDirectory& directory, const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    for (const bool is_stderr : {false, true}) {
      sources_.push_back(std::make_unique<Source>(directory, LogSource{rank, is_stderr}, sources_.size()));
    }
  }
}

LogMerge::~LogMerge() = default;

void LogMerge::skip_to_last(int64_t lines) {
  for (const auto& source : sources_) source->stream.skip_to_last(lines);
}

void LogMerge::skip_until(int64_t ns) {
  for (const auto& source : sources_) source->stream.skip_until(ns);
}

void LogMerge::advance(Source& source, bool grows) {
  source.block = source.stream.next(grows);
  if (!source.block) return;
  waiting_.push_back(&source);
  std::push_heap(waiting_.begin(), waiting_.end(), Source::later);
}

bool LogMerge::read(bool grows, const OnBlock& on_block) {
  const int64_t until = grows ? now_ns() - kSettleNs : std::numeric_limits<int64_t>::max();
  for (const auto& source : sources_) {
    if (!source->block) advance(*source, grows);
  }
  size_t bytes = 0;
  bool any = false;
  while (!waiting_.empty() && waiting_.front()->block->ns <= until && bytes < kMostAtOnce) {
    std::pop_heap(waiting_.begin(), waiting_.end(), Source::later);
    Source& source = *waiting_.back();
    waiting_.pop_back();
    any = true;
    bytes += source.block->text.size();
    on_block(source.who, *source.block);
    advance(source, grows);
  }
  return any;
}

}  // namespace trainctl
