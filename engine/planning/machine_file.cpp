// Finds machines: those that come with the program, and those that `trainctl calibrate` has written.
#include "engine/planning/machine_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/base/text.h"
#include "engine/machine/machine_text.h"
#include "engine/plan/plan.h"
#include "engine/spec/hosts.h"

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
  if (name.find('/') != std::string::npos)
    throw SpecError({}, "--name",
                    "the name of a machine is part of a file "
                    "name and cannot contain '/'");
  return machines_folder() + "/" + name + ".json";
}

void write_machine(const Machine& machine, const std::string& file) {
  std::error_code error;
  fs::create_directories(fs::path(file).parent_path(), error);
  write_output(file, to_json(machine));
}

namespace {

std::shared_ptr<const Machine> machine_called(const std::string& name, bool is_given) {
  if (name.find('/') != std::string::npos) return read_machine(name);
  const fs::path file = machine_file(name);
  std::error_code ignored;
  if (is_given && fs::exists(file, ignored)) return read_machine(file);
  if (const Machine* known = find_machine(name)) return std::make_shared<Machine>(*known);
  throw SpecError({}, "launch.machine", "unknown machine '" + name + "'",
                  "one of " + known_names() + ", or a file written by trainctl calibrate (a path with a '/')");
}

/// Returns for each rank the index of its machine in launch.machines.
std::vector<size_t> machines_of_ranks(const JobSpec& spec) {
  const LaunchSpec& launch = spec.launch;
  std::vector<size_t> machines;
  if (!launch.hosts.empty()) {
    const std::vector<HostRanks> hosts = place_ranks(parse_hosts(launch.hosts), launch.ranks).hosts;
    for (size_t host = 0; host < hosts.size(); ++host)
      machines.insert(machines.end(), static_cast<size_t>(hosts[host].ranks), host);
    if (launch.machines.size() == hosts.size()) return machines;
  }
  machines.clear();
  for (int rank = 0; rank < launch.ranks; ++rank) machines.push_back(static_cast<size_t>(rank));
  check(launch.machines.size() == machines.size(), "validation accepts one machine per rank or per host");
  return machines;
}

std::vector<double> machine_speeds(const JobSpec& spec) {
  const DType type = compute_type(spec.precision);
  std::vector<double> speeds;
  std::optional<DeviceKind> kind;
  for (const std::string& name : spec.launch.machines) {
    const auto machine = machine_called(name, true);
    if (kind.value_or(machine->kind) != machine->kind)
      throw SpecError(spec.position("launch.machine"), "launch.machine",
                      name + " has different devices than " + spec.launch.machines.front() +
                          ": all ranks run on CPUs, or "
                          "all on GPUs",
                      "list machines with the same kind of device");
    kind = machine->kind;
    speeds.push_back(machine->product_rate(type, spec.precision == Precision::tf32).value);
  }
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  for (double& speed : speeds) speed /= fastest;
  return speeds;
}

}  // namespace

std::shared_ptr<const Machine> machine_of(const LaunchSpec& launch) {
  const bool is_given = launch.machine != "auto";
  const auto first = machine_called(is_given                        ? launch.machine
                                    : launch.device == Device::cuda ? "h200x8"
                                                                    : "cpu",
                                    is_given);
  if (launch.machines.size() < 2) return first;
  auto machine = std::make_shared<Machine>(*first);  // gets the smallest memory, because every rank must fit
  for (const std::string& name : launch.machines)
    machine->memory.value = std::min(machine->memory.value, machine_called(name, true)->memory.value);
  return machine;
}

std::vector<double> rank_speeds(const JobSpec& spec) {
  if (spec.launch.machines.size() < 2) return {};
  const std::vector<double> speeds = machine_speeds(spec);
  std::vector<double> of_ranks;
  for (const size_t machine : machines_of_ranks(spec)) of_ranks.push_back(speeds[machine]);
  return of_ranks;
}

std::vector<double> stage_speeds(const JobSpec& spec) {
  constexpr double kSame = 0.01;
  const int stages = spec.parallel.stages;
  if (spec.launch.machines.size() < 2 || spec.launch.ranks % stages != 0) return {};
  if (!spec.parallel.rank_micro_batches.empty()) return {};  // the ranks divide the work otherwise
  const std::vector<double> of_ranks = rank_speeds(spec);
  const size_t of_stage = of_ranks.size() / static_cast<size_t>(stages);
  std::vector<double> of_stages;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const double speed = of_ranks[rank];
    if (rank % of_stage == 0) of_stages.push_back(speed);
    if (std::abs(speed - of_stages.back()) <= kSame) continue;
    throw SpecError(
        spec.position("launch.machine"), "launch.machine",
        fmt::format(
            "ranks {} and {} share stage {} evenly, but one is {:.2g} times as fast as the other and would wait for it",
            rank - rank % of_stage, rank, rank / of_stage,
            std::max(speed, of_stages.back()) / std::min(speed, of_stages.back())),
        "use parallel: {mode: data_parallel}, where a faster rank runs more micro-batches, or parallel.stages so that "
        "each stage has machines of one speed");
  }
  return of_stages;
}

}  // namespace trainctl
