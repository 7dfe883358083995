// Tests of reading a stream back from files that are rotated and deleted meanwhile, with times that are whole,
// truncated, wrong or missing.
#include "launcher/log_stream.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "launcher/log_tail.h"
#include "launcher/log_writer.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

struct Read {
  std::string text;                 ///< text of all blocks
  std::vector<std::string> events;  ///< "10: one\n", "20 restart 1", "30 lost 5"
};

void read_into(Read& read, LogStream& stream, bool grows) {
  while (const auto block = stream.next(grows)) {
    if (block->kind == LogBlock::Kind::lines) {
      read.text += block->text;
      read.events.push_back(std::to_string(block->ns) + ": " + std::string(block->text));
    } else {
      const char* name = block->kind == LogBlock::Kind::restart ? " restart " : " lost ";
      read.events.push_back(std::to_string(block->ns) + name + std::to_string(block->value));
    }
  }
}

Read read_all(const LogFiles& files) {
  LogStream stream(files);
  Read read;
  read_into(read, stream, false);
  return read;
}

using Events = std::vector<std::string>;

}  // namespace

TEST_CASE("lines have the time at which they were complete") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {}, 0, 1);
  log.write("one\ntw", 10);
  log.write("o", 20);
  log.write("\nthree\nfour\nfi", 30);
  CHECK(read_all(files).events == Events{"10: one\n", "30: two\nthree\nfour\n", "30: fi"});
}

TEST_CASE("an incomplete line is left for later while the log grows") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogStream stream(files);
  Read read;
  read_into(read, stream, true);
  CHECK(read.events.empty());  // it is not there yet
  LogWriter log(files, {}, 0, 1);
  log.write("one\ntw", 10);
  read_into(read, stream, true);
  log.write("o\n", 20);
  read_into(read, stream, true);
  log.write("end", 30);
  read_into(read, stream, true);
  CHECK(read.events == Events{"10: one\n", "20: two\n"});
  read_into(read, stream, false);
  CHECK(read.events.back() == "30: end");
}

TEST_CASE("a stream is read through all its files") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {.file_bytes = 20, .files = 1000}, 0, 1);
  std::string all;
  for (int i = 0; i < 200; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    all += line;
    log.write(line, i);
  }
  REQUIRE(files.numbers().size() > 50);
  CHECK(read_all(files).text == all);
}

TEST_CASE("a reader keeps its position while files are rotated") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {.file_bytes = 50, .files = 1000}, 0, 1);
  LogStream stream(files);
  Read read;
  std::string all;
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    std::string part = "part " + std::to_string(i) + (random() % 3 == 0 ? "\n" : " ");
    all += part;
    log.write(part, i);
    if (random() % 5 == 0) read_into(read, stream, true);
  }
  read_into(read, stream, false);
  CHECK(read.text == all);
}

TEST_CASE("a reader that is too slow continues with the oldest remaining file") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {.file_bytes = 1, .files = 3}, 0, 1);
  LogStream stream(files);
  Read read;
  log.write("0\n", 0);
  read_into(read, stream, true);
  for (int i = 1; i < 10; ++i) log.write(std::to_string(i) + "\n", i);
  read_into(read, stream, true);
  CHECK(read.text == "0\n7\n8\n9\n");
}

TEST_CASE("restarts and losses are reported between the lines where they happened") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  { LogWriter(files, {}, 0, 1).write("first\ncut", 10); }
  { LogWriter(files, {}, 1, 20).write("second\n", 30); }
  std::ofstream(files.times_path(LogFiles::kCurrent), std::ios::app)
      << encode({TimesRecord::Kind::lost, 40, 5}) << encode({TimesRecord::Kind::bytes, 50, 22});
  std::ofstream(files.path(LogFiles::kCurrent), std::ios::app) << "third\n";
  CHECK(read_all(files).events ==
        Events{"10: first\n", "20: cut\n", "20 restart 1", "30: second\n", "40 lost 5", "50: third\n"});
}

TEST_CASE("without times all lines are read, with no time") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter(files, {}, 0, 1).write("one\ntwo\n", 10);
  fs::remove_all(files.times_directory());
  CHECK(read_all(files).events == Events{"0: one\ntwo\n"});
}

TEST_CASE("lines after truncated times have the last known time") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {}, 0, 1);
  log.write("one\n", 10);
  log.write("two\n", 20);
  log.write("three\n", 30);
  const size_t two_records = kTimesMagic.size() + 2 * kTimesRecordBytes;
  for (const size_t kept : {two_records, two_records + 1, two_records + kTimesRecordBytes - 1}) {
    fs::resize_file(files.times_path(LogFiles::kCurrent), kept);
    CHECK(read_all(files).events == Events{"10: one\n", "20: two\n", "20: three\n"});
  }
  fs::resize_file(files.times_path(LogFiles::kCurrent), 7);
  CHECK(read_all(files).text == "one\ntwo\nthree\n");
}

TEST_CASE("a log that was truncated by hand is read from its new beginning") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {}, 0, 1);
  LogStream stream(files);
  Read read;
  log.write("one\ntwo\nthree\n", 10);
  read_into(read, stream, true);
  fs::resize_file(files.path(LogFiles::kCurrent), 0);
  log.write("four\n", 20);
  read_into(read, stream, true);
  CHECK(read.text == "one\ntwo\nthree\nfour\n");
}

TEST_CASE("times never go back within a stream, whatever the clock did") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {}, 0, 1);
  log.write("one\n", 100);
  log.write("two\n", 50);
  log.write("three\n", 120);
  CHECK(read_all(files).events == Events{"100: one\n", "100: two\n", "120: three\n"});
}

TEST_CASE("lines of any length and any bytes are read whole") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  std::mt19937 random(3);
  std::string all;
  for (const size_t length : {size_t{0}, size_t{1}, size_t{1'000'000}, size_t{3}, size_t{300'000}}) {
    for (size_t i = 0; i < length; ++i) {
      const char byte = static_cast<char>(random());
      all += byte == '\n' ? '\0' : byte;
    }
    all += '\n';
  }
  LogWriter log(files, {.file_bytes = 400'000, .files = 100}, 0, 1);
  for (size_t at = 0; at < all.size(); at += 65'537) log.write(std::string_view(all).substr(at, 65'537), 1);
  LogStream stream(files);
  std::string read;
  int64_t lines = 0;
  while (const auto block = stream.next(false)) {
    CHECK(block->text.back() == '\n');
    lines += std::count(block->text.begin(), block->text.end(), '\n');
    read += block->text;
  }
  CHECK(lines == 5);
  CHECK((read == all));
}

TEST_CASE("a stream may start at its last lines, over several files") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {.file_bytes = 100, .files = 10000}, 0, 1);
  for (int i = 0; i < 1000; ++i) log.write("line " + std::to_string(i) + "\n", i);
  const auto last = [&](int64_t count) {
    LogStream stream(files);
    stream.skip_to_last(count);
    Read read;
    read_into(read, stream, false);
    return read.text;
  };
  CHECK(last(0).empty());
  CHECK(last(2) == "line 998\nline 999\n");
  for (const int64_t count : {1, 11, 12, 13, 14, 500, 1000, 2000}) {
    const std::string text = last(count);
    CHECK(std::count(text.begin(), text.end(), '\n') == std::min<int64_t>(count, 1000));
    CHECK(text.ends_with("line 999\n"));
  }
}

TEST_CASE("a stream may start at a time, over several files, with a whole line") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {.file_bytes = 100, .files = 10000}, 0, 1);
  for (int i = 0; i < 300; ++i) {
    log.write("line ", 10 * i);
    log.write(std::to_string(i) + "\n", 10 * i + 5);
  }
  for (const int first : {0, 1, 7, 8, 9, 100, 298, 299}) {
    for (const int before : {0, 4}) {
      LogStream stream(files);
      stream.skip_until(10 * first + 5 - before);
      const auto block = stream.next(false);
      REQUIRE(block.has_value());
      CHECK(block->text == "line " + std::to_string(first) + "\n");
      CHECK(block->ns == 10 * first + 5);
    }
  }
  LogStream stream(files);
  stream.skip_until(1'000'000);
  CHECK_FALSE(stream.next(false).has_value());
}

TEST_CASE("the tail of a file is its last lines, or the end of a huge line") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/log";
  CHECK(tail_of_file(path, 3).empty());
  std::ofstream(path) << "a\nb\nc\nd\n";
  CHECK(tail_of_file(path, 2) == "c\nd");
  CHECK(tail_of_file(path, 9) == "a\nb\nc\nd");
  std::ofstream(path) << "a\nb\nc";
  CHECK(tail_of_file(path, 2) == "b\nc");
  std::ofstream(path) << std::string(100000, 'x') << "end\n";
  const std::string tail = tail_of_file(path, 2);
  CHECK(tail.size() < 20000);
  CHECK(tail.ends_with("xend"));
}

TEST_CASE("the tail of a file that has just been begun includes lines of the preceding one") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/stderr.1") << "a\nb\n";
  std::ofstream(scratch.path() + "/stderr.2") << "c\nd\n";
  std::ofstream(scratch.path() + "/stderr") << "e\n";
  CHECK(tail_of_file(scratch.path() + "/stderr", 2) == "d\ne");
  CHECK(tail_of_file(scratch.path() + "/stderr", 1) == "e");
}
