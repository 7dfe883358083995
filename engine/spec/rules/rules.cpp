// Functions that the rules of several sections share.
#include "engine/spec/rules/rules.h"

#include <algorithm>
#include <set>

#include "engine/base/text.h"

namespace trainctl::rules {

void RuleContext::wrong(const std::string& path, const std::string& message, const std::string& hint) {
  problems.add(job.position(in_job(path)), in_job(path), message, hint);
}

bool RuleContext::fine(std::initializer_list<const char*> paths) const {
  for (const char* path : paths)
    if (problems.touch(in_job(path))) return false;
  return true;
}

std::string RuleContext::in_job(const std::string& path) const {
  const bool is_of_set = path == "dataset" || path.starts_with("dataset.");
  return !source.empty() && is_of_set ? source + path.substr(std::string("dataset").size()) : path;
}

std::string number(int64_t value) { return std::to_string(value); }

std::string divisors(int64_t value) {
  std::set<int64_t> found;
  for (int64_t d = 1; d * d <= value; ++d)
    if (value % d == 0) found.insert({d, value / d});
  std::vector<std::string> all;
  for (auto d = found.begin(); d != found.end() && all.size() < 12; ++d) all.push_back(number(*d));
  return join(all);
}

bool is_one_folder(const DatasetSpec& set) { return set.has_file_splits() || set.type == "npy"; }

bool has_source_called(const DatasetSpec& mix, const std::string& name) {
  return std::any_of(mix.sources.begin(), mix.sources.end(), [&](const DatasetSpec& s) { return s.name == name; });
}

std::vector<std::string> source_names(const DatasetSpec& mix) {
  std::vector<std::string> names;
  for (const DatasetSpec& source : mix.sources) names.push_back(source.name);
  return names;
}

}  // namespace trainctl::rules
