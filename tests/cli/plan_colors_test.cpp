// Tests of the colors of a plan: without them the text is the same.
#include "cli/render/plan_colors.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <regex>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

std::string without_colors(const std::string& text) {
  return std::regex_replace(text, std::regex("\033\\[[0-9]*m"), "");
}

std::string planned(const Scratch& scratch, std::vector<std::string> words) {
  words.insert(words.begin(), {"plan", TRAINCTL_SOURCE_DIR "/configs/mnist_mlp.yaml", "--layers"});
  const CommandResult result = trainctl_command(scratch.path(), words);
  CHECK(result.exit_code == kExitDone);
  return result.out;
}

}  // namespace

TEST_CASE("a coloured plan is the plain one with escape sequences") {
  const Scratch scratch;
  const std::string plain = planned(scratch, {});
  CHECK(plain.find('\033') == std::string::npos);
  CHECK(planned(scratch, {"--color", "auto"}) == plain);
  CHECK(planned(scratch, {"--color", "never"}) == plain);
  const std::string colored = planned(scratch, {"--color", "always"});
  CHECK(without_colors(colored) == plain);
  for (const char* part : {"\033[1mlayers\033[0m", "\033[1mmnist_mlp\033[0m: ", "\033[2m  stage  layer", "\033[36m[2@",
                           "\033[32mF0\033[0m", "\033[34mB0\033[0m", "\033[2m--\033[0m", "\033[35mall_reduce\033[0m"}) {
    CAPTURE(part);
    CHECK(contains(colored, part));
  }
  CHECK(planned(scratch, {"--color", "always", "--json"}).find('\033') == std::string::npos);
}

TEST_CASE("colours of a plan end with their word, and change nothing else") {
  const std::string text =
      "note: beware\n\nlayers\n  stage  in\n      0  [2@0, 1]  a@b\n\nschedule\n1f1b\n  stage 0 |F0 . x B10 W2 Fx\n";
  const std::string colored = color_plan(text);
  CHECK(without_colors(colored) == text);
  CHECK(contains(colored, "\033[33mnote\033[0m: beware"));
  CHECK(contains(colored, "\033[36m[2@0,\033[0m 1]  a@b"));
}
