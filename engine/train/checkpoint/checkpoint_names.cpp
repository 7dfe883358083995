// The names in a directory of checkpoints (checkpoint_directory.h).
#include "engine/train/checkpoint/checkpoint_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <tuple>

#include "engine/base/error.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step_", kAttempt = ".attempt_";

template <class Integer>
bool take_number(std::string_view& text, Integer& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

std::vector<CheckpointName> published_last(const std::string& directory) {
  std::vector<CheckpointName> names;
  try {
    std::istringstream lines(read_whole_file(directory + "/" + std::string(kNewestName)));
    for (std::string line; std::getline(lines, line);) {
      const std::optional<CheckpointName> name = parse_checkpoint_name(line);
      std::error_code ignored;
      if (name && !name->hidden && fs::exists(directory + "/" + line, ignored)) names.push_back(*name);
    }
  } catch (const EnvError&) {
    // The file is only a hint: sooner or later the listing has the same names.
  }
  return names;
}

}  // namespace

std::string CheckpointName::text() const {
  std::string name = fmt::format("{}{}{:08}", hidden ? "." : "", kStep, step);
  if (attempt > 0) name += fmt::format("{}{}", kAttempt, attempt);
  return name;
}

std::optional<CheckpointName> parse_checkpoint_name(std::string_view text) {
  CheckpointName name;
  std::string_view rest = text;
  name.hidden = take(rest, ".");
  if (!take(rest, kStep) || !take_number(rest, name.step)) return {};
  const bool has_attempt = take(rest, kAttempt);
  if (has_attempt && (!take_number(rest, name.attempt) || name.attempt == 0)) return {};
  if (!rest.empty() || (name.hidden && !has_attempt) || name.text() != text) return {};
  return name;
}

std::vector<CheckpointName> checkpoint_names(const std::string& directory) {
  std::vector<CheckpointName> names = published_last(directory);
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    if (const auto name = parse_checkpoint_name(entries->path().filename().string())) names.push_back(*name);
  if (error && error != std::errc::no_such_file_or_directory)
    throw EnvError(fmt::format("{}: cannot be listed: {}", directory, error.message()));
  const auto key = [](const CheckpointName& name) { return std::tuple(-name.step, -name.attempt, name.hidden); };
  std::sort(names.begin(), names.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  names.erase(std::unique(names.begin(), names.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }),
              names.end());
  return names;
}

}  // namespace trainctl
