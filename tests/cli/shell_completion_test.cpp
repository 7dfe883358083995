// Completion in bash, zsh and fish, each with the script that trainctl gives it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;
using Words = std::vector<std::string>;

namespace {

/// The lines that a script prints, run by a shell in the scratch folder with trainctl in its PATH.
Words lines_of(const Scratch& scratch, const std::string& shell, const std::string& script) {
  std::ofstream(scratch.path() + "/try.sh") << script;
  const std::string folder = std::filesystem::path(TRAINCTL_BINARY).parent_path();
  const std::string command = "cd " + scratch.path() + " && PATH=" + folder + ":$PATH HOME=" + scratch.path() +
                              " XDG_RUNTIME_DIR=" + scratch.path() + " LC_ALL=C " + shell + " try.sh > out 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream out(scratch.path() + "/out");
  Words lines;
  for (std::string line; std::getline(out, line);) lines.push_back(line);
  CAPTURE(lines.empty() ? "no output" : lines.back());
  CHECK(status == 0);
  return lines;
}

bool have_shell(const std::string& shell) {
  const bool have = std::system(("command -v " + shell + " >/dev/null 2>&1").c_str()) == 0;
  if (!have) skip_test("no " + shell + " on this machine");
  return have;
}

}  // namespace

TEST_CASE("bash completes with the script that it is given") {
  if (!have_shell("bash")) return;
  const Scratch scratch;
  small_job(scratch.path());
  CHECK(lines_of(scratch, "bash", R"(source <(trainctl completion bash)
compopt() { :; }
complete_line() {
  COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
  _trainctl
  echo "${COMPREPLY[*]}"
}
complete_line "trainctl sh"
complete_line "trainctl run job.yaml launch.bind=n"
complete_line "trainctl run job.yaml launch.bi"
complete_line "trainctl run job.yaml network."
complete_line "trainctl run job.yaml loss=ms"
complete_line "trainctl bench op matm"
complete_line "trainctl bench op --device=cu"
)") == Words{"show", "none numa", "launch.bind=", "network.act1. network.fc1. network.out.", "mse",
             "matmul matmul_fp8 matmul_weight_grad", "cuda"});
}

TEST_CASE("zsh completes with the script that it is given") {
  if (!have_shell("zsh")) return;
  const Scratch scratch;
  small_job(scratch.path());
  CHECK(lines_of(scratch, "zsh -f", R"(compdef() { :; }
_files() { echo files; }
compadd() {
  while [[ $1 != -- ]]; do shift; done
  shift
  echo "$*"
}
source <(trainctl completion zsh)
complete_line() { words=("$@"); CURRENT=$#; _trainctl; }
complete_line trainctl sh
complete_line trainctl run job.yaml launch.bind=n
complete_line trainctl run job.yaml launch.bi
complete_line trainctl run job.yaml network.
complete_line trainctl bench op matm
complete_line trainctl bench op --device=cu
complete_line trainctl init mlp -o ""
)") == Words{"show", "launch.bind=none launch.bind=numa", "launch.bind=", "network.act1. network.fc1. network.out.",
             "matmul matmul_fp8 matmul_weight_grad", "--device=cuda", "files"});
}

TEST_CASE("fish completes with the script that it is given") {
  if (!have_shell("fish")) return;
  const Scratch scratch;
  small_job(scratch.path());
  const Words lines = lines_of(scratch, "fish --no-config", R"(trainctl completion fish | source
for line in "trainctl sh" "trainctl run job.yaml launch.bind=n" "trainctl run job.yaml launch.bi" \
    "trainctl run job.yaml network." "trainctl bench op matm" "trainctl init mlp -o j" "trainctl run "
  complete -C $line | string replace -r '\t.*' '' | string join ' '
end
true
)");
  CHECK(lines == Words{"show", "launch.bind=none launch.bind=numa",
                       "launch.bind=", "network.act1. network.fc1. network.out.",
                       "matmul matmul_fp8 matmul_weight_grad", "job.yaml", "job.yaml"});
}
