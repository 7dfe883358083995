// Tests of the stream between a launcher and an agent: its grammar, and that each message arrives once even if
// connections break.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "launcher/hosts/frame.h"
#include "launcher/hosts/report_json.h"
#include "launcher/hosts/session.h"

using namespace trainctl;
using namespace trainctl::hosts;

namespace {

Message text(const std::string& words) { return {Message::Kind::output, 2, 7, 123456789, "stdout", words}; }

/// Sends everything that one side has to send, over a connection that breaks after `limit` bytes.
std::vector<Message> transfer(Session& from, Session& to, size_t limit) {
  FrameReader reader;
  reader.feed(from.take_output(1 << 30).substr(0, limit));
  std::vector<Message> arrived;
  while (auto frame = reader.next()) {
    bool gap = false;
    if (auto message = to.receive(std::get<Numbered>(std::move(*frame)), gap)) arrived.push_back(std::move(*message));
    REQUIRE_FALSE(gap);
  }
  return arrived;
}

}  // namespace

TEST_CASE("hosts: every frame is read as it was written, however the stream is cut") {
  const std::string stream = encode(Join{kVersion, 3, 17, "token"}) + encode(Welcome{kVersion, 5}) +
                             encode(Numbered{1, text("epoch: 1\n")}) + encode(Numbered{2, text("")}) + encode(Alive{9});
  for (size_t piece = 1; piece < stream.size(); ++piece) {
    FrameReader reader;
    std::vector<Frame> frames;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::string_view(stream).substr(at, piece));
      while (auto frame = reader.next()) frames.push_back(std::move(*frame));
    }
    REQUIRE(frames.size() == 5);
    CHECK(std::get<Join>(frames[0]).token == "token");
    CHECK(std::get<Join>(frames[0]).connection == 3);
    CHECK(std::get<Join>(frames[0]).received == 17);
    CHECK(std::get<Welcome>(frames[1]).received == 5);
    CHECK(std::get<Numbered>(frames[2]).message == text("epoch: 1\n"));
    CHECK(std::get<Numbered>(frames[3]).number == 2);
    CHECK(std::get<Alive>(frames[4]).received == 9);
    CHECK_FALSE(reader.broken());
  }
}

TEST_CASE(
    "hosts: a frame that is too large, too short, or of an unknown kind ends the stream before memory is allocated for "
    "it") {
  const std::string message = encode(Numbered{1, text("x")});
  const std::vector<std::string> wrong = {
      std::string("\xff\xff\xff\xff", 4), std::string("\x01\x00\x20\x00", 4),
      std::string("\0\0\0\0", 4),         std::string("\1\0\0\0Q", 5),
      std::string("\1\0\0\0A", 5),        std::string("\x09\0\0\0M\1\0\0\0\0\0\0\0", 13)};
  for (const std::string& bytes : wrong) {
    FrameReader reader;
    reader.feed(message + bytes + message);
    CHECK(reader.next().has_value());
    CHECK_FALSE(reader.next().has_value());
    CHECK(reader.broken());
    CHECK_FALSE(reader.next().has_value());
  }
}

TEST_CASE("hosts: a message of an unknown kind, or with a name that is longer than the frame, is refused") {
  std::string frame = encode(Numbered{1, text("x")}).substr(4);
  REQUIRE(parse_frame(frame));
  std::string kind = frame, name = frame, number = frame;
  kind[9] = '?';
  name[26] = '\x7f';
  number[1] = '\0';  // numbers count from 1
  CHECK_FALSE(parse_frame(kind));
  CHECK_FALSE(parse_frame(name));
  CHECK_FALSE(parse_frame(number));
}

TEST_CASE("hosts: each message arrives once and in order over connections that break anywhere") {
  std::mt19937 random(7);
  Session here, there;
  int sent = 0;
  std::vector<Message> arrived;
  for (int connection = 0; connection < 400; ++connection) {
    REQUIRE(here.joined(there.received()));
    for (int i = static_cast<int>(random() % 4); i > 0; --i) here.send(text(std::to_string(++sent)));
    for (Message& message : transfer(here, there, random() % 200)) arrived.push_back(std::move(message));
    if (random() % 3 == 0) REQUIRE(here.confirmed(there.received()));
    here.lost();
  }
  REQUIRE(here.joined(there.received()));
  for (Message& message : transfer(here, there, 1 << 30)) arrived.push_back(std::move(message));
  REQUIRE(static_cast<int>(arrived.size()) == sent);
  REQUIRE(sent > 400);
  for (int i = 0; i < sent; ++i) CHECK(arrived[static_cast<size_t>(i)].text == std::to_string(i + 1));
  REQUIRE(here.confirmed(there.received()));
  CHECK(here.is_done());
  CHECK(here.unconfirmed_bytes() == 0);
}

TEST_CASE("hosts: a missing message is detected, and so is the confirmation of a message that was never sent") {
  Session here, there;
  here.send(text("1"));
  bool gap = false;
  CHECK_FALSE(there.receive({2, text("2")}, gap));
  CHECK(gap);
  CHECK_FALSE(here.confirmed(2));
  CHECK(here.confirmed(1));
  CHECK_FALSE(here.confirmed(0));
  CHECK_FALSE(here.joined(0));
}

TEST_CASE("hosts: a report keeps its order in time on a host whose clock is wrong") {
  RankReport report;
  report.end = {17, true, 9};
  report.time = 1000.5;
  report.error = RankError{.kind = ErrorKind::comm, .what = "rank 1", .missing = {1}, .time = 1000.25};
  report.last_lines = "last\xff words";
  const auto read = parse_report(report_json(report, 1002), 5002);
  REQUIRE(read);
  CHECK(read->time == doctest::Approx(5000.5));
  CHECK(read->error->time == doctest::Approx(5000.25));
  CHECK(read->error->missing == std::vector<int>{1});
  CHECK(read->end.signaled);
  CHECK(read->end.code == 9);
  CHECK_FALSE(parse_report("{}", 0));
  CHECK_FALSE(parse_report("[1", 0));
  CHECK_FALSE(parse_report(R"({"signaled": "yes"})", 0));
}
