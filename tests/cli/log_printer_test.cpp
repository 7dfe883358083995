// The format of log lines.
#include "cli/render/log_printer.h"

#include <doctest/doctest.h>

#include <stdexcept>

using namespace trainctl;

namespace {

constexpr int64_t kTime = 1'769'866'205'000'000'007;  // 2026-01-31T13:30:05.000000007Z

LogBlock printed_lines(std::string_view text) { return {LogBlock::Kind::lines, kTime, 0, text}; }

std::string printed(LogPrinter::Options options, const std::vector<std::pair<LogSource, LogBlock>>& blocks) {
  LogPrinter printer(std::move(options));
  for (const auto& [source, block] : blocks) printer.block(source, block);
  printer.end_tail();
  return printer.take();
}

}  // namespace

TEST_CASE("prefixes are as wide as the largest rank's, and name stderr") {
  CHECK(printed({.largest_rank = 12}, {{{3, false}, printed_lines("a\nb\n")}, {{12, true}, printed_lines("c\n")}}) ==
        "rank  3 | a\nrank  3 | b\nrank 12 err | c\n");
  CHECK(printed({.prefix = false}, {{{3, false}, printed_lines("a\n\nb")}}) == "a\n\nb\n");
}

TEST_CASE("only prefixes are colored, and a rank's own colors end with its line") {
  const std::string text =
      printed({.terminal = true, .colors = true},
              {{{0, false}, printed_lines("plain\n\033[31mred\n")}, {{0, true}, printed_lines("e\n")}});
  CHECK(text ==
        "\033[36mrank 0 | \033[0mplain\n\033[36mrank 0 | \033[0m\033[31mred\033[0m\n\033[31mrank 0 err | \033[0me\n");
}

TEST_CASE("lines cannot control a terminal, and reach a file as they were written") {
  const std::string_view hostile = "a\033]0;title\007b\033[2Jc\033[31md\n";
  CHECK(printed({.prefix = false, .terminal = true}, {{{0, false}, printed_lines(hostile)}}) == "abcd\n");
  CHECK(printed({.prefix = false, .terminal = true, .colors = true}, {{{0, false}, printed_lines(hostile)}}) ==
        "abc\033[31md\033[0m\n");
  CHECK(printed({.prefix = false}, {{{0, false}, printed_lines(hostile)}}) == hostile);
}

TEST_CASE("a restart is printed once per rank, lost bytes wherever they were") {
  const LogBlock restart{LogBlock::Kind::restart, kTime, 2, {}}, lost{LogBlock::Kind::lost, kTime, 1234, {}};
  CHECK(printed({}, {{{0, false}, restart}, {{0, true}, restart}, {{1, false}, lost}}) ==
        "rank 0 | --- restart 2 ---\nrank 1 | --- 1,234 bytes could not be written here ---\n");
  CHECK(printed({.json = true}, {{{0, true}, restart}, {{0, true}, lost}}) ==
        "{\"time\":\"2026-01-31T13:30:05.000000007Z\",\"rank\":0,\"stream\":\"stderr\",\"restart\":2,\"lost_bytes\":"
        "1234}\n");
}

TEST_CASE("JSON has the line as it was written, and null for an unknown time") {
  CHECK(printed({.json = true}, {{{0, false}, printed_lines("50%\r100%\n\"\\\t\x01\n")}}) ==
        "{\"time\":\"2026-01-31T13:30:05.000000007Z\",\"rank\":0,\"stream\":\"stdout\",\"text\":\"50%\\r100%\"}\n"
        "{\"time\":\"2026-01-31T13:30:05.000000007Z\",\"rank\":0,\"stream\":\"stdout\",\"text\":\"\\\"\\\\\\t\\u0001\"}"
        "\n");
  CHECK(printed({.json = true}, {{{0, false}, {LogBlock::Kind::lines, 0, 0, "x\n"}}}) ==
        "{\"time\":null,\"rank\":0,\"stream\":\"stdout\",\"text\":\"x\"}\n");
}

TEST_CASE("the tail is taken per rank, from the lines that match, in order of arrival") {
  const std::vector<std::pair<LogSource, LogBlock>> blocks = {
      {{0, false}, printed_lines("a1\na2\nb\n")}, {{1, false}, printed_lines("a3\n")}, {{0, true}, printed_lines("a4\n")}};
  CHECK(printed({.prefix = false, .grep = "^a[0-9]$", .tail = 2}, blocks) == "a2\na3\na4\n");
  CHECK(printed({.prefix = false, .tail = 0}, blocks).empty());
}

TEST_CASE("a pattern is an extended regular expression over any bytes") {
  CHECK(LinePattern("a|b").matches("xxb"));
  CHECK(LinePattern("x.* y$").matches(std::string_view("\0x\xff y", 5)));
  CHECK_FALSE(LinePattern("^y").matches("xy"));
  CHECK(LinePattern("x+y").matches(std::string(1 << 20, 'x') + "y"));
  CHECK_THROWS_AS(LinePattern("(a"), std::invalid_argument);
}
