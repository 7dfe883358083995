// The jobs that this user has submitted to Slurm with trainctl, as ps and stop see them from a login node.
#include "launcher/clusters/slurm.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/text.h"
#include "launcher/clusters/command.h"

namespace trainctl::clusters {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string folder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/trainctl/slurm";
  if (home == nullptr || *home != '/') throw EnvError("neither HOME nor XDG_STATE_HOME is set");
  return std::string(home) + "/.local/state/trainctl/slurm";
}

std::string slurm_answer_in_one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

[[noreturn]] void fail(const std::string& program, const CommandEnd& end) {
  throw EnvError(program + " failed: " + slurm_answer_in_one_line(end.err.empty() ? end.out : end.err));
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

std::vector<SubmittedJob> remembered() {
  std::vector<SubmittedJob> jobs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder(), error)) {
    std::ifstream file(entry.path());
    const Json json = Json::parse(file, nullptr, false);
    const std::string id = entry.path().stem();
    if (!json.is_object() || !is_number(id)) continue;
    SubmittedJob job;
    job.id = id;
    job.name = field_or(json, "name", "");
    job.log_dir = field_or(json, "log_dir", "");
    job.submitted = field_or(json, "submitted", 0.0);
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.submitted < b.submitted; });
  return jobs;
}

/// Jobs by number, which the jobs of an array share: id, state, reason or nodes, time, time left.
std::multimap<std::string, std::vector<std::string>> queue() {
  const CommandEnd end = run_command({"squeue", "--me", "--noheader", "--format=%F|%i|%T|%R|%M|%L"}, 20);
  if (end.code != 0) fail("squeue", end);
  std::multimap<std::string, std::vector<std::string>> jobs;
  std::istringstream lines(end.out);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    std::istringstream text(line);
    for (std::string field; std::getline(text, field, '|');) fields.push_back(field);
    if (fields.size() == 6) jobs.emplace(fields[0], std::vector(fields.begin() + 1, fields.end()));
  }
  return jobs;
}

}  // namespace

std::vector<std::string> submit_words(const std::string& script) { return {"sbatch", "--parsable", script}; }

/// Parses the output of --parsable: "12" or "12;cluster".
std::string submit(const std::string& script) {
  const CommandEnd end = run_command(submit_words(script));
  const std::string id = end.out.substr(0, end.out.find_first_of(";\n"));
  if (end.code != 0 || !is_number(id)) fail("sbatch", end);
  return id;
}

void remember(const SubmittedJob& job) {
  const std::string path = folder() + "/" + job.id + ".json";
  std::error_code error;
  fs::create_directories(folder(), error);
  std::ofstream file(path);
  file << Json{{"name", job.name}, {"log_dir", job.log_dir}, {"submitted", job.submitted}}.dump() << "\n";
  file.flush();
  if (!file) throw EnvError("cannot write " + path + "; trainctl ps will not list the job");
}

std::vector<SubmittedJob> submitted_jobs(std::string& notice) {
  std::vector<SubmittedJob> jobs = remembered();
  if (jobs.empty()) return jobs;
  std::multimap<std::string, std::vector<std::string>> known;
  try {
    known = queue();
  } catch (const EnvError& error) {
    notice = std::string("cannot list Slurm jobs: ") + error.what();
    return {};
  }
  std::vector<SubmittedJob> found;
  for (const SubmittedJob& job : jobs) {
    const auto [first, end] = known.equal_range(job.id);
    if (first == end) {
      std::error_code ignored;
      fs::remove(folder() + "/" + job.id + ".json", ignored);
    }
    for (auto at = first; at != end; ++at) {
      SubmittedJob& one = found.emplace_back(job);
      one.id = at->second[0];
      one.state = at->second[1];
      one.reason = at->second[2];
      one.time = at->second[3];
      one.time_left = at->second[4];
    }
  }
  return found;
}

/// --batch sends the signal only to the batch script, which forwards it to the launcher.
void stop_job(const SubmittedJob& job, bool now) {
  std::vector<std::string> words{"scancel"};
  if (!now && job.state == "RUNNING") words.insert(words.end(), {"--batch", "--signal=TERM"});
  words.push_back(job.id);
  const CommandEnd end = run_command(words);
  if (end.code != 0) fail("scancel", end);
}

}  // namespace trainctl::clusters
