// See the header.
#include "engine/planning/machine_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/base/text.h"
#include "engine/machine/machine_text.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Machine> read_machine(const fs::path& file) {
  std::ifstream in(file);
  if (!in) throw EnvError(file.string() + ": cannot be read");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return std::make_shared<Machine>(machine_of_json(text, file.string()));
}

std::string known_names() {
  std::vector<std::string> names;
  for (const Machine& machine : known_machines()) names.push_back(machine.name);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(machines_folder(), ignored))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  return join(names);
}

}  // namespace

std::string machines_folder() {
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config != nullptr && *config != '\0')
    return std::string(config) + "/trainctl/machines";
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : "") + "/.config/trainctl/machines";
}

std::string machine_file(const std::string& name) {
  if (name.find('/') != std::string::npos) throw SpecError({}, "--name", "a machine's name is part of a file's name");
  return machines_folder() + "/" + name + ".json";
}

void write_machine(const Machine& machine, const std::string& file) {
  std::error_code error;
  fs::create_directories(fs::path(file).parent_path(), error);
  write_output(file, to_json(machine));
}

std::shared_ptr<const Machine> machine_of(const LaunchSpec& launch) {
  const std::string name = launch.machine != "auto" ? launch.machine : launch.device == Device::cuda ? "h200x8" : "cpu";
  if (name.find('/') != std::string::npos) return read_machine(name);
  const fs::path file = machine_file(name);
  std::error_code ignored;
  if (launch.machine != "auto" && fs::exists(file, ignored)) return read_machine(file);
  if (const Machine* known = find_machine(name)) return std::make_shared<Machine>(*known);
  throw SpecError({}, "launch.machine", "there is no machine '" + name + "'",
                  "one of " + known_names() + ", or a file that trainctl calibrate has written (a path with a '/')");
}

}  // namespace trainctl
