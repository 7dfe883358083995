// Candidates for the word that is being typed.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trainctl {

struct Candidate {
  std::string word;     ///< replaces the whole typed word
  std::string meaning;  ///< one line; may be empty
};

/// Completes the last of the `words` after "trainctl". Never throws: a shell has no use for errors.
std::vector<Candidate> complete(const CLI::App& app, const std::vector<std::string>& words);

/// trainctl complete -- WORDS: prints one candidate per line, a tab, and its meaning. Called by the shells' scripts.
int print_candidates(const CLI::App& app, std::vector<std::string> words);

/// Completes an override: "launch.bi" -> launch.bind=, "launch.bind=c" -> launch.bind=core, "network." -> the layers,
/// "network.fc1." -> the fields of its type. `job` is the job file, "" if none is given yet; it may be wrong or
/// incomplete. `others` are the overrides typed before this one.
std::vector<Candidate> complete_override(const std::string& typed, const std::string& job,
                                         const std::vector<std::string>& others);

}  // namespace trainctl
