// Tests of the report of a failed run.
#include "launcher/failure_report.h"

#include <doctest/doctest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

/// A failure of three ranks, which rank 1 caused.
struct Scene {
  Scratch scratch;
  Cluster cluster = one_host(3);
  RunDirectory directory = RunDirectory::create(scratch.path(), 3);
  Outcome outcome;

  Scene() {
    for (RankPlace& place : cluster.places) place.host = "node-a";
    outcome.exit_code = 5;
    outcome.cause = {Cause::Kind::failed, 1, -1};
    outcome.reports.resize(3);
    for (RankReport& report : outcome.reports) {
      report.state = ProcessState::ended;
      report.end = {1, true, SIGTERM};
      report.asked = true;
    }
    cause().asked = false;
  }
  RankReport& cause() { return outcome.reports[1]; }
  std::string report() const { return failure_report(outcome, cluster, directory); }
  void words(const std::string& text) { cause().last_lines = text; }
};

}  // namespace

TEST_CASE("a run without a failure has no report") {
  Scene scene;
  scene.outcome.cause = {};
  CHECK(scene.report().empty());
}

TEST_CASE("the report ends with the cause: rank, host, what it was doing, its last output") {
  Scene scene;
  scene.cause().end = {1, true, SIGSEGV};
  scene.cause().doing = "step 412, all_reduce grad.0 (instruction 881)";
  scene.words("first\nbug: this rank got SIGSEGV");
  CHECK(scene.report() ==
        "ranks 0, 2 stopped as a consequence\n"
        "rank 1 (node-a) was killed by SIGSEGV at step 412, all_reduce grad.0 (instruction 881)\n"
        "  last lines of its stderr, " +
            scene.directory.rank_file(1, "stderr") + ":\n  | first\n  | bug: this rank got SIGSEGV\n");
}

TEST_CASE("output of a rank cannot control the terminal, neither in the report nor in a notice") {
  constexpr const char* kHostile = "\x1b]0;owned\x07never\x1b[2J mind\rit ended well";
  Scene scene;
  scene.cause().end = {1, true, SIGSEGV};
  scene.words(std::string("first\n") + kHostile);
  scene.cause().error = RankError{.kind = ErrorKind::program, .what = kHostile, .stack = kHostile};
  scene.cause().doing = kHostile;
  const std::string line = cause_line(scene.outcome.reports, scene.outcome.cause, scene.cluster);
  for (const std::string& text : {scene.report(), line}) {
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find('\r') == std::string::npos);
    CHECK(text.find('\x07') == std::string::npos);
  }
  CHECK(scene.report().find("  | first\n") != std::string::npos);
  scene.words("");
  CHECK(scene.report().find('\x1b') == std::string::npos);  // of the stack
  for (RankReport& report : scene.outcome.reports) report.ranks_explain = false;
  CHECK(scene.report().find('\x1b') == std::string::npos);
}

TEST_CASE("a loss of nan is a failure of the run and not of a rank") {
  Scene scene;
  for (RankReport& report : scene.outcome.reports) {
    report.end = {1, false, 5};
    report.error.emplace();
    report.error->kind = ErrorKind::loss;
    report.error->what = "loss is nan since step 17 (epoch 2, step 5)";
    report.error->step = 17;
  }
  scene.words("loss is nan since step 17 (epoch 2, step 5)\n");
  CHECK(scene.report() == "loss is nan since step 17 (epoch 2, step 5)\n");
  const auto json = nlohmann::json::parse(failure_json(scene.outcome, scene.cluster));
  CHECK(json["first_cause"]["message"] == "loss is nan since step 17 (epoch 2, step 5)");
  for (const auto& rank : json["ranks"]) CHECK(rank["consequence"] == false);
}

TEST_CASE("the rank's own error message is shown once") {
  Scene scene;
  scene.cause().end = {1, false, 3};
  scene.cause().error =
      RankError{.kind = ErrorKind::env, .what = "no space left", .instruction = "load data", .step = 7};
  CHECK(scene.report().find("rank 1 (node-a) failed at step 7, in load data: no space left\n") != std::string::npos);
  scene.words("error: no space left");
  CHECK(scene.report().find("rank 1 (node-a) failed at step 7, in load data\n") != std::string::npos);
  CHECK(scene.report().ends_with("  | error: no space left\n"));
}

TEST_CASE("SIGKILL is called out of memory only when the kernel said so") {
  Scene scene;
  scene.cause().end = {1, true, SIGKILL};
  CHECK(scene.report().find("was killed by SIGKILL") != std::string::npos);
  CHECK(scene.report().find("memory") == std::string::npos);
  scene.cause().out_of_memory = true;
  CHECK(scene.report().find("was killed by the kernel: out of memory") != std::string::npos);
}

TEST_CASE("a silent rank is named with its peer's complaint") {
  Scene scene;
  scene.outcome.reports[0].error =
      RankError{.kind = ErrorKind::comm, .what = "rank 1 has not arrived", .instruction = ""};
  scene.outcome.cause = {Cause::Kind::silent, 1, 0};
  scene.cause().asked = true;
  scene.cause().doing = "step 3, recv x (instruction 4)";
  CHECK(scene.report().find(
            "rank 1 (node-a) stopped responding at step 3, recv x (instruction 4): rank 1 has not arrived\n") !=
        std::string::npos);
}

TEST_CASE("error.json has the cause and marks consequences") {
  Scene scene;
  scene.cause().end = {1, false, 7};
  scene.outcome.reports[2].end = {1, false, 0};
  const auto json = nlohmann::json::parse(failure_json(scene.outcome, scene.cluster), nullptr, false);
  REQUIRE(json.is_object());
  CHECK(json["exit_code"] == 5);
  CHECK(json["first_cause"]["rank"] == 1);
  CHECK(json["first_cause"]["host"] == "node-a");
  CHECK(json["ranks"][0]["consequence"] == true);
  CHECK(json["ranks"][1]["consequence"] == false);
  CHECK(json["ranks"][1]["ended"] == "exited with code 7");
  CHECK(json["ranks"][2]["consequence"] == false);
}

namespace {

/// Ranks of a program, with the given exit codes; -1: still running when the others failed.
struct Program {
  Scratch scratch;
  Cluster cluster;
  RunDirectory directory;
  Outcome outcome;

  explicit Program(const std::vector<int>& codes)
      : cluster(one_host(static_cast<int>(codes.size()))),
        directory(RunDirectory::create(scratch.path(), static_cast<int>(codes.size()))) {
    for (RankPlace& place : cluster.places) place.host = "node-a";
    for (const int code : codes) {
      RankReport report;
      report.state = ProcessState::ended;
      report.ranks_explain = false;
      report.asked = code < 0;
      report.end = {.pid = 1, .signaled = code < 0, .code = code < 0 ? SIGTERM : code};
      report.time = code == 0 ? 100.0 : 101.0;
      outcome.reports.push_back(report);
    }
  }
  std::string report() {
    outcome.cause = find_first_cause(outcome.reports);
    outcome.exit_code = 5;
    return failure_report(outcome, cluster, directory);
  }
};

}  // namespace

TEST_CASE("the report of a program begins with the rank that had ended, or is the only one that still runs") {
  Program left({1, 1, 0, 1});
  left.outcome.reports[0].last_lines = "Connection closed by peer";
  CHECK(left.report() ==
        "rank 2 had exited with code 0 1.0 s earlier; the other ranks may have been waiting for it\n"
        "ranks 0,1,3 exited with code 1\n"
        "  last lines of rank 0's stderr, " +
            left.directory.rank_file(0, "stderr") + ":\n  | Connection closed by peer\n");
  Program hangs({1, 1, -1, 1});
  CHECK(hangs.report() ==
        "rank 2 was the only rank still running; the other ranks may have been waiting for it\n"
        "ranks 0,1,3 exited with code 1\n");
  hangs.outcome.reports[2].frozen = true;
  CHECK(hangs.report().find("rank 2 was the only rank still running, and its process was stopped by SIGSTOP") == 0);
}

TEST_CASE("the report of a program lists all ranks that failed at once, and those that failed later") {
  Program program({3, 3, 3, 1, -1, -1});
  program.outcome.reports[3].time = 101.6;
  CHECK(
      program.report().starts_with("ranks 1,2 exited with code 3 at the same time\n"
                                   "rank 3 exited with code 1 0.6 s later\n"
                                   "ranks 4, 5 stopped as a consequence\n"
                                   "rank 0 (node-a) exited with code 3\n"));
  const auto json = nlohmann::json::parse(failure_json(program.outcome, program.cluster), nullptr, false);
  CHECK(json["ranks"][1]["consequence"] == false);
  CHECK(json["ranks"][3]["consequence"] == true);
  CHECK(json["ranks"][4]["consequence"] == true);
}

TEST_CASE("if one rank's failure is the cause, ranks that ended before or still run are mentioned first") {
  Program program({0, 7, 0, 0});
  CHECK(program.report().starts_with(
      "ranks 0,2,3 had exited with code 0 1.0 s earlier\nrank 1 (node-a) exited with code 7\n"));
}

TEST_CASE("the error that a program's rank left is shown, with its stack if it wrote nothing to stderr") {
  Program program({1, -1});
  program.outcome.reports[0].error = RankError{
      .kind = ErrorKind::program, .what = "ValueError: bad\nmore", .time = 101.0, .stack = "Traceback\n  f()"};
  CHECK(program.report().ends_with(
      "rank 0 (node-a) failed: ValueError: bad\n  its stack trace:\n  | Traceback\n  |   f()\n"));
}
