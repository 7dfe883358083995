// The report of a failed run.
#include "launcher/failure_report.h"

#include <doctest/doctest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

/// Three ranks, of which rank 1 is the cause.
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
  void words(const std::string& text) { cause().last_words = text; }
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
        "ranks 0, 2 stopped because of it\n"
        "rank 1 (node-a) was killed by SIGSEGV at step 412, all_reduce grad.0 (instruction 881)\n"
        "  its last words, in " +
            scene.directory.rank_file(1, "stderr") + ":\n  | first\n  | bug: this rank got SIGSEGV\n");
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
  CHECK(scene.report().find("was killed by the kernel for lack of memory") != std::string::npos);
}

TEST_CASE("a silent rank is named with its peer's complaint") {
  Scene scene;
  scene.outcome.reports[0].error =
      RankError{.kind = ErrorKind::comm, .what = "rank 1 has not arrived", .instruction = ""};
  scene.outcome.cause = {Cause::Kind::silent, 1, 0};
  scene.cause().asked = true;
  scene.cause().doing = "step 3, recv x (instruction 4)";
  CHECK(scene.report().find(
            "rank 1 (node-a) stopped answering at step 3, recv x (instruction 4): rank 1 has not arrived\n") !=
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
