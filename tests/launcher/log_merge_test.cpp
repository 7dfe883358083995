// Tests of the merge of many ranks' logs in order of time, and of the user's syntax to select among them.
#include "launcher/log_merge.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <stdexcept>

#include "launcher/log_selection.h"
#include "launcher/log_writer.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

LogFiles stream_of(const RunDirectory& run, int rank, const char* name = "stdout") {
  return {run.rank_path(rank), name};
}

void read_into(std::string& text, LogMerge& merge, bool grows) {
  while (merge.read(grows, [&](const LogSource& source, const LogBlock& block) {
    text += std::to_string(source.rank) + (source.is_stderr ? "e:" : ":") + std::string(block.text);
  })) {
  }
}

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

TEST_CASE("lines of all ranks and both streams are in order of time") {
  const Scratch scratch;
  const RunDirectory run = RunDirectory::create(scratch.path(), 3);
  LogWriter a(stream_of(run, 0), {}, 0, 1), b(stream_of(run, 1), {}, 0, 1), e(stream_of(run, 1, "stderr"), {}, 0, 1);
  a.write("a1\n", 10);
  b.write("b1\n", 5);
  e.write("e1\n", 12);
  a.write("a2\n", 30);
  b.write("b2\n", 20);
  a.write("a3\n", 31);
  std::string text;
  LogMerge merge(run, {0, 1, 2});
  read_into(text, merge, false);
  CHECK(text == "1:b1\n0:a1\n1e:e1\n1:b2\n0:a2\n0:a3\n");
  std::string only;
  LogMerge one(run, {1});
  read_into(only, one, false);
  CHECK(only == "1:b1\n1e:e1\n1:b2\n");
}

TEST_CASE("lines without a time come first, by rank") {
  const Scratch scratch;
  const RunDirectory run = RunDirectory::create(scratch.path(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    LogWriter(stream_of(run, rank), {}, 0, 1).write("line\n", 10 - rank);
  }
  std::filesystem::remove_all(run.rank_path(1) + "/times");
  std::filesystem::remove_all(run.rank_path(2) + "/times");
  std::string text;
  LogMerge merge(run, {0, 1, 2});
  read_into(text, merge, false);
  CHECK(text == "1:line\n2:line\n0:line\n");
}

TEST_CASE("while a run continues, its latest lines wait until no earlier one can arrive") {
  const Scratch scratch;
  const RunDirectory run = RunDirectory::create(scratch.path(), 2);
  LogWriter a(stream_of(run, 0), {}, 0, 1), b(stream_of(run, 1), {}, 0, 1);
  std::string text;
  LogMerge merge(run, {0, 1});
  const int64_t now = unix_ns() + 3'600'000'000'000;  // however slow the machine is
  a.write("later\n", now);
  a.write("last\n", now + 2);
  read_into(text, merge, true);
  CHECK(text.empty());
  b.write("earlier\n", now - 1);
  read_into(text, merge, false);
  CHECK(text == "1:earlier\n0:later\n0:last\n");
}

TEST_CASE("lists of ranks consist of numbers and ranges") {
  CHECK(parse_ranks("3") == std::vector<int>{3});
  CHECK(parse_ranks("7,0,3-5,4") == std::vector<int>{0, 3, 4, 5, 7});
  for (const char* bad : {"", "a", "1,", "1-", "5-3", "1;2", "-1", "1,,2", "0-99999999"}) {
    CHECK_THROWS_AS(parse_ranks(bad), std::invalid_argument);
  }
}

TEST_CASE("a time is a duration before now, or a moment") {
  setenv("TZ", "UTC-2", 1);  // two hours east of Greenwich
  tzset();
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t now = 1'769'866'200 * kSecond;  // 2026-01-31T13:30:00Z
  CHECK(parse_since("30s", now) == now - 30 * kSecond);
  CHECK(parse_since("2h30m", now) == now - 9000 * kSecond);
  CHECK(parse_since("1.5d", now) == now - 129600 * kSecond);
  CHECK(parse_since("2026-01-31T13:30:00Z", now) == now);
  CHECK(parse_since("2026-01-31T13:30:00.25Z", now) == now + kSecond / 4);
  CHECK(parse_since("2026-01-31T14:30:00+01:00", now) == now);
  CHECK(parse_since("2026-01-31T15:30", now) == now);
  CHECK(parse_since("2026-01-31 15:30:10", now) == now + 10 * kSecond);
  CHECK(parse_since("15:29", now) == now - 60 * kSecond);
  CHECK(parse_since("2026-01-31", now) == now - (15 * 3600 + 1800) * kSecond);
  for (const char* bad : {"", "x", "10", "10x", "-5m", "25:00", "12:60", "2026-13-01", "2326-01-31", "2026-01-31T",
                          "2026-01-31T1", "2026-01-31T10:00:00Q", "2026-01-31T10:00:99", "12:30junk", "1e99d", "inf"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_since(bad, now), std::invalid_argument);
  }
  unsetenv("TZ");
  tzset();
}

TEST_CASE("log times are read back as written, and no other bytes are accepted") {
  using Kind = TimesRecord::Kind;
  for (const TimesRecord& record : {TimesRecord{Kind::bytes, 0, 0}, TimesRecord{Kind::restart, INT64_MAX, 7},
                                    TimesRecord{Kind::lost, 1, (int64_t{1} << 56) - 1}}) {
    CHECK(decode_times(encode(record)) == record);
    CHECK_FALSE(decode_times(encode(record).substr(1)).has_value());
  }
  CHECK_FALSE(decode_times(std::string(16, '\xff')).has_value());
}
