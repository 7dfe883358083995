// trainctl completion: a script for the shell. It asks `trainctl complete` for every word, so it is always in step
// with the binary.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "engine/base/error.h"

namespace trainctl {
namespace {

// Bash ends words at `=` and `:`. So the script takes the typed word from the line itself, and returns only the part
// after the last `=` or `:`.
constexpr std::string_view kBash = R"sh(# trainctl completion for bash:  source <(trainctl completion bash)
_trainctl() {
  local line=${COMP_LINE:0:COMP_POINT} words word tail
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  word=${words[-1]}
  tail=${word%"${word##*[=:]}"}
  COMPREPLY=()
  while IFS=$'\t' read -r candidate _; do
    [[ $candidate == *[=./] ]] && compopt -o nospace
    COMPREPLY+=("${candidate#"$tail"}")
  done < <("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null)
}
complete -o default -F _trainctl trainctl
)sh";

constexpr std::string_view kZsh = R"sh(#compdef trainctl
# trainctl completion for zsh:  source <(trainctl completion zsh), or as _trainctl in a folder of $fpath
_trainctl() {
  local line candidate
  local -a open closed
  while IFS= read -r line; do
    candidate=${line%%$'\t'*}
    if [[ $candidate == *[=./] ]]; then open+=("$candidate"); else closed+=("$candidate"); fi
  done < <("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
  (( ${#open} + ${#closed} )) || { _files; return; }
  (( ${#open} )) && compadd -S '' -- "${open[@]}"
  (( ${#closed} )) && compadd -- "${closed[@]}"
}
if [[ $funcstack[1] == _trainctl ]]; then _trainctl "$@"; else compdef _trainctl trainctl; fi
)sh";

// fish itself adds no space after `=`, `.` and `/`. Files are offered where there is nothing else.
constexpr std::string_view kFish = R"sh(# trainctl completion for fish:  trainctl completion fish | source
function __trainctl_complete
  set -l words (commandline -opc)
  set -l word (commandline -ct)
  $words[1] complete -- $words[2..-1] "$word" 2>/dev/null
end
complete -c trainctl -f -a '(__trainctl_complete)'
complete -c trainctl -n 'not count (__trainctl_complete) >/dev/null' -F
)sh";

std::string unknown_shell(const std::string& word) {
  return word == "bash" || word == "zsh" || word == "fish"
             ? ""
             : "there is no script for '" + word + "'; shells: bash, zsh, fish";
}

int print_script(const std::string& shell) {
  std::cout << (shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish);
  return kExitDone;
}

}  // namespace

void add_completion_command(CLI::App& app, Action& chosen) {
  auto shell = std::make_shared<std::string>();
  auto* command = app.add_subcommand("completion", "Print a script that completes trainctl's words in your shell");
  command->add_option("shell", *shell, "bash | zsh | fish")->required()->check(unknown_shell, "");
  command->footer(
      R"(Completes commands, options and their values, job files, fields of the job file and their values, layers, ops, and
the numbers of runs.

Examples:
  source <(trainctl completion bash)                           for this shell; put it into ~/.bashrc
  trainctl completion zsh > "${fpath[1]}/_trainctl"
  trainctl completion fish > ~/.config/fish/completions/trainctl.fish)");
  command->callback([&chosen, shell] { chosen = [shell] { return print_script(*shell); }; });
}

}  // namespace trainctl
