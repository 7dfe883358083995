// Rules about paths: no shell expands '~' and variables in a job file.
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "engine/spec/rules/rules.h"

namespace trainctl::rules {

void paths_use_no_shell_syntax(RuleContext& r) {
  const JobSpec& job = r.job;
  std::vector<std::pair<std::string, std::string>> paths = {{"launch.log_dir", job.launch.log_dir},
                                                            {"launch.hostfile", job.launch.hostfile},
                                                            {"working_dir", job.working_dir},
                                                            {"dataset.tokenizer", job.dataset.tokenizer}};
  for (size_t i = 0; i < job.launch.copy.size(); ++i)
    paths.emplace_back("launch.copy[" + number(static_cast<int64_t>(i)) + "]", job.launch.copy[i]);
  if (job.train.checkpoint) paths.emplace_back("train.checkpoint.dir", job.train.checkpoint->dir);
  if (job.weights) paths.emplace_back("weights.from", job.weights->from);
  if (job.adapters.lora) paths.emplace_back("adapters.lora.from", job.adapters.lora->from);
  if (job.validation && job.validation->generate)
    paths.emplace_back("validation.generate.prompts", job.validation->generate->prompts);
  const auto is_for_a_shell = [](const std::string& path) {
    const bool is_home = path.starts_with("~") && path.find('/') != std::string::npos;
    return is_home ||
           (path.size() > 1 && path[0] == '$' && (path[1] == '{' || path[1] == '_' || std::isalpha(path[1])));
  };
  for (const auto& [field, path] : paths)
    if (is_for_a_shell(path) && r.fine({field.c_str()}))
      r.wrong(field, path.substr(0, path.find('/')) + " is shell syntax, which is not expanded here",
              "write the whole path; on the command line the shell replaces it: " + field + "=$HOME/…");
}

}  // namespace trainctl::rules
