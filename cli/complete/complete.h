// What may stand in place of the word that is being typed.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trainctl {

struct Candidate {
  std::string word;     ///< in place of all that was typed of the word
  std::string meaning;  ///< one line; may be empty
};

/// `words` behind "trainctl", the last one as far as it is typed. Never throws: a shell has no use for errors.
std::vector<Candidate> complete(const CLI::App& app, const std::vector<std::string>& words);

/// trainctl complete -- WORDS: a candidate a line, its meaning behind a tab. What the shells' scripts ask.
int print_candidates(const CLI::App& app, std::vector<std::string> words);

/// `typed` as far as it goes: "launch.bi" -> launch.bind=, "launch.bind=c" -> launch.bind=core. `job` is the job
/// file, for the names of its layers and for what it may hold; "" where none is given yet.
std::vector<Candidate> complete_override(const std::string& typed, const std::string& job);

}  // namespace trainctl
