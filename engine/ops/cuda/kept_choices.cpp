// Choices that are measured once on a machine and then kept in a file: which algorithm of a library computes a product
// or a convolution.
#include "engine/ops/cuda/kept_choices.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>

#include "engine/base/error.h"
#include "engine/ops/cuda/print_once.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

struct Line {
  std::string key, choice;
};

/// Returns nothing for a line of another form.
std::optional<Line> parse(const std::string& line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string::npos || line.back() != '.') return std::nullopt;
  Line parsed{line.substr(0, space), line.substr(space + 1, line.size() - space - 2)};
  if (parsed.choice.empty() || parsed.choice.find(' ') != std::string::npos) return std::nullopt;
  return parsed;
}

/// The first choice of each key.
std::map<std::string, std::string> read(const fs::path& file) {
  std::map<std::string, std::string> choices;
  std::ifstream in(file);
  int at = 0, damaged = 0, first_damaged = 0;
  for (std::string line; std::getline(in, line);) {
    ++at;
    if (line.empty()) continue;
    if (std::optional<Line> parsed = parse(line)) {
      choices.emplace(std::move(parsed->key), std::move(parsed->choice));
    } else if (++damaged == 1) {
      first_damaged = at;
    }
  }
  if (damaged > 0)
    print_once(file.string() + ": " + std::to_string(damaged) + (damaged == 1 ? " line is" : " lines are") +
               " damaged, beginning with line " + std::to_string(first_damaged) +
               "; they are ignored, and their choices are measured again");
  return choices;
}

/// An open, locked file: one process measures while the others wait.
class LockedFile {
 public:
  explicit LockedFile(const fs::path& path) {
    if (path.empty()) return;
    std::error_code failed;
    fs::create_directories(path.parent_path(), failed);
    file_ = failed ? -1 : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    while (file_ >= 0 && ::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~LockedFile() {
    if (file_ >= 0) ::close(file_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  bool is_open() const { return file_ >= 0; }
  /// Begins on a line of its own, whatever a process that died has left at the end.
  bool add(const std::string& key, const std::string& choice) const {
    const std::string line = "\n" + key + " " + choice + ".\n";
    return ::lseek(file_, 0, SEEK_END) >= 0 && ::write(file_, line.data(), line.size()) == ssize_t(line.size());
  }

 private:
  int file_ = -1;
};

bool is_one_word(const std::string& text) { return !text.empty() && text.find_first_of(" \n") == std::string::npos; }

}  // namespace

std::optional<std::string> KeptChoices::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (const auto known = taken_.find(key); known != taken_.end()) return known->second;
  if (file_.empty()) return std::nullopt;
  const auto kept = read(file_);
  const auto found = kept.find(key);
  if (found == kept.end()) return std::nullopt;
  taken_.emplace(*found);
  return found->second;
}

std::string KeptChoices::find_or_make(const std::string& key, const std::string& unkept,
                                      const std::function<std::string()>& make) {
  check(is_one_word(key), "the key of a choice is one word");
  const std::lock_guard lock(mutex_);
  if (const auto known = taken_.find(key); known != taken_.end()) return known->second;
  std::string choice = unkept;
  if (const LockedFile file(file_); file.is_open()) {
    const auto kept = read(file_);
    if (const auto found = kept.find(key); found != kept.end()) {
      choice = found->second;
    } else {
      std::string made = make();
      check(is_one_word(made), "a choice is one word");
      if (file.add(key, made)) choice = std::move(made);
    }
  }
  taken_.emplace(key, choice);
  return choice;
}

}  // namespace trainctl
