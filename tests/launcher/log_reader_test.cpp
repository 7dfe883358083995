// Reading logs back.
#include "launcher/log_reader.h"

#include <doctest/doctest.h>

#include <fstream>
#include <stdexcept>

#include "tests/launcher/scratch.h"

using namespace trainctl;

TEST_CASE("the tail of a file is its last lines, of a huge line its end") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/log";
  CHECK(tail_of_file(path, 3).empty());
  std::ofstream(path) << "a\nb\nc\nd\n";
  CHECK(tail_of_file(path, 2) == "c\nd");
  CHECK(tail_of_file(path, 9) == "a\nb\nc\nd");
  std::ofstream(path) << std::string(100000, 'x') << "end\n";
  const std::string tail = tail_of_file(path, 2);
  CHECK(tail.size() < 20000);
  CHECK(tail.ends_with("xend"));
}

TEST_CASE("a log is read in whole lines while it grows") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/log";
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  LogFile log(path);
  CHECK_FALSE(log.read(take));  // it is not there yet
  std::ofstream file(path);
  file << "one\ntw" << std::flush;
  CHECK(log.read(take));
  CHECK(lines == std::vector<std::string>{"one"});
  file << "o\nrest" << std::flush;
  CHECK(log.read(take));
  CHECK_FALSE(log.read(take));
  log.finish(take);
  CHECK(lines == std::vector<std::string>{"one", "two", "rest"});
}

TEST_CASE("a log read from its last lines goes on from there") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/log";
  std::ofstream file(path);
  for (int i = 0; i < 100000; ++i) file << "line " << i << "\n";
  file.flush();
  std::vector<std::string> lines;
  LogFile log(path);
  log.skip_to_last(2);
  log.finish([&](std::string_view line) { lines.emplace_back(line); });
  CHECK(lines == std::vector<std::string>{"line 99998", "line 99999"});
  lines.clear();
  LogFile whole(path);
  whole.skip_to_last(1000000);
  whole.finish([&](std::string_view line) { lines.emplace_back(line); });
  CHECK(lines.size() == 100000);
}

TEST_CASE("lists of ranks have numbers and ranges") {
  CHECK(parse_ranks("3") == std::vector<int>{3});
  CHECK(parse_ranks("7,0,3-5,4") == std::vector<int>{0, 3, 4, 5, 7});
  for (const char* bad : {"", "a", "1,", "1-", "5-3", "1;2", "-1", "1,,2", "0-99999999"}) {
    CHECK_THROWS_AS(parse_ranks(bad), std::invalid_argument);
  }
}
