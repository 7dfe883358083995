// trainctl completion: prints a script for the shell. The script calls `trainctl complete` for every word, so it always
// matches the binary.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "engine/base/error.h"

namespace trainctl {
namespace {

// Bash ends words at `=` and `:`. The script therefore takes the typed word from the line and returns only the part
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

// fish adds no space after `=`, `.` and `/`. The script offers files if there are no other candidates.
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
             : "no completion script for '" + word + "'; available: bash, zsh, fish";
}

int print_script(const std::string& shell) {
  std::cout << (shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish);
  return kExitDone;
}

}  // namespace

void add_completion_command(CLI::App& app, Action& chosen) {
  auto shell = std::make_shared<std::string>();
  auto* command = app.add_subcommand("completion", "Print a completion script for your shell");
  command->add_option("shell", *shell, "bash | zsh | fish")->required()->check(unknown_shell, "");
  command->footer(
      R"(The script completes commands, options and their values, job files, fields of the job and their values, layers, ops, and
run numbers.

Examples:
  source <(trainctl completion bash)                           for this shell; add it to ~/.bashrc
  trainctl completion zsh > "${fpath[1]}/_trainctl"
  trainctl completion fish > ~/.config/fish/completions/trainctl.fish)");
  command->callback([&chosen, shell] { chosen = [shell] { return print_script(*shell); }; });
}

}  // namespace trainctl
