// Finds the script in a command like [python3, -u, train.py, --lr, 0.1] and checks that it exists.
#include "cli/run/launch/script_check.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using ScriptWords = std::vector<std::string_view>;

struct Interpreter {
  ScriptWords names;        ///< without a version: "python" is python3.11 too
  ScriptWords suffixes;     ///< file name suffixes of its scripts
  std::string_view flags;   ///< one-letter options without a value
  std::string_view valued;  ///< one-letter options with a value, in the same word or in the next
  ScriptWords long_flags;   ///< long options without a value
  ScriptWords long_valued;  ///< long options whose value is the next word
};

// An option that is not listed ends the search: it may give the program itself (-c, -m, -e), or take a value.
const std::vector<Interpreter>& interpreters() {
  static const std::vector<Interpreter> all = {
      {{"python", "pypy"}, {".py", ".pyc", ".pyz"}, "bBdEiIOPqRsSuvx", "WX", {}, {"--check-hash-based-pycs"}},
      {{"bash", "sh", "dash", "zsh", "ksh"},
       {".sh", ".bash", ".zsh", ".ksh"},
       "aefhklmnprtuvxBCEHPT",
       "oO",
       {"--login", "--noprofile", "--norc", "--posix", "--restricted", "--verbose"},
       {"--init-file", "--rcfile"}},
      {{"perl"}, {".pl"}, "cfstTuUwWX", "I", {}, {}},
      {{"ruby"}, {".rb"}, "cdvw", "Ir", {}, {}},
      {{"node", "nodejs"}, {".js", ".mjs", ".cjs"}, "", "r", {"--enable-source-maps"}, {"--require", "--import"}},
      {{"Rscript"}, {".R", ".r"}, "", "", {"--no-save", "--vanilla", "--verbose"}, {}},
      {{"julia"}, {".jl"}, "iq", "ptLJ", {"--quiet"}, {"--project", "--threads", "--load"}},
  };
  return all;
}

bool holds(const ScriptWords& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// "/usr/bin/python3.11" -> "python".
std::string name_of(const std::string& program) {
  std::string name = fs::path(program).filename();
  return name.substr(0, name.find_last_not_of("0123456789.") + 1);
}

const Interpreter* interpreter(const std::string& program) {
  const std::string name = name_of(program);
  for (const Interpreter& one : interpreters())
    if (holds(one.names, name)) return &one;
  return nullptr;
}

/// Returns how many words an option takes; 0 if it is not known.
size_t words_of_option(const Interpreter& interpreter, std::string_view option) {
  if (option.starts_with("--")) {
    if (holds(interpreter.long_valued, option)) return 2;
    const std::string_view name = option.substr(0, option.find('='));
    const bool has_value = name.size() < option.size() && holds(interpreter.long_valued, name);
    return has_value || holds(interpreter.long_flags, option) ? 1 : 0;
  }
  for (size_t i = 1; i < option.size(); ++i) {
    if (interpreter.valued.find(option[i]) != std::string_view::npos) return i + 1 == option.size() ? 2 : 1;
    if (interpreter.flags.find(option[i]) == std::string_view::npos) return 0;
  }
  return option.size() > 1 ? 1 : 0;
}

/// Returns the files of `folder` that the user may have meant.
std::vector<std::string> scripts_in(const fs::path& folder, const std::string& suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == suffix) names.push_back(entry.path().filename());
  return names;
}

}  // namespace

std::optional<size_t> script_word(const std::vector<std::string>& command) {
  const Interpreter* known = command.empty() ? nullptr : interpreter(command.front());
  if (known == nullptr) return {};
  for (size_t i = 1; i < command.size();) {
    const std::string& word = command[i];
    const bool is_option = word.starts_with("-") || word.starts_with("+");
    if (is_option && word != "--") {
      const size_t words = words_of_option(*known, word);
      if (words == 0) return {};
      i += words;
      continue;
    }
    if (word == "--" && ++i >= command.size()) return {};
    const bool is_script = holds(known->suffixes, fs::path(command[i]).extension().string());
    return is_script ? std::optional(i) : std::nullopt;
  }
  return {};
}

void require_script(const JobSpec& spec) {
  const std::optional<size_t> at = script_word(spec.command);
  if (!at) return;
  const std::string field = "command[" + std::to_string(*at) + "]";
  const fs::path path = (fs::path(spec.working_dir) / spec.command[*at]).lexically_normal();
  std::error_code error;
  if (!fs::exists(path, error)) {
    const std::string near = did_you_mean(path.filename().string(), scripts_in(path.parent_path(), path.extension()));
    throw SpecError(spec.position(field), field, "the script " + path.string() + " does not exist",
                    near.empty() ? "paths are relative to working_dir, which is " + spec.working_dir : near);
  }
  if (access(path.c_str(), R_OK) != 0)
    throw SpecError(spec.position(field), field, path.string() + " cannot be read", "check its permissions");
}

}  // namespace trainctl
